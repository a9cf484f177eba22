// Answers the requests of tests/clients/node.py by TensorFlow's C API in Node.js.
//
//     node node_predict.js FOLDER_OF_TFJS_NODE SAVED_MODEL REQUESTS REPLIES
//
// It calls the binding of tfjs-node, since a tensor of tfjs holds no int64: `predict` of tfjs-node
// writes -1 as 4294967295, and takes no request that leaves an input out.
"use strict";

const fs = require("fs");

const [folder, savedModel, requests, replies] = process.argv.slice(2);
const tf = require(folder);
const binding = tf.backend().binding;
const VIEWS = { float32: Float32Array, int64: Int32Array };

function decode(text) {
  const bytes = Buffer.from(text, "base64");
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
}

function makeTensor({ dtype, shape, data }) {
  if (dtype === "string") {
    const texts = data.map((text) => new Uint8Array(decode(text)));
    return binding.createTensor(shape, binding.TF_STRING, texts);
  }
  const type = { float32: binding.TF_FLOAT, int64: binding.TF_INT64 }[dtype];
  return binding.createTensor(shape, type, new VIEWS[dtype](decode(data)));
}

function readTensor({ id, shape, dtype }) {
  const values = binding.tensorDataSync(id);
  binding.deleteTensor(id);
  if (dtype === binding.TF_STRING) {
    const data = values.map((text) => Buffer.from(text).toString("base64"));
    return { dtype: "string", shape, data };
  }
  const name = { [binding.TF_FLOAT]: "float32", [binding.TF_INT64]: "int64" }[dtype];
  const bytes = Buffer.from(values.buffer, values.byteOffset, values.byteLength);
  return { dtype: name, shape, data: bytes.toString("base64") };
}

function run(session, signature, inputs) {
  const ids = Object.values(inputs).map(makeTensor);
  const inputNames = Object.keys(inputs).map((name) => signature.inputs[name].name);
  const outputs = Object.entries(signature.outputs);
  const outputNames = outputs.map(([, info]) => info.name);
  try {
    const made = binding.runSavedModel(session, ids, inputNames.join(","), outputNames.join(","));
    return Object.fromEntries(outputs.map(([name], index) => [name, readTensor(made[index])]));
  } finally {
    ids.forEach((id) => binding.deleteTensor(id));
  }
}

async function main() {
  const [graph] = await tf.node.getMetaGraphsFromSavedModel(savedModel);
  const session = binding.loadSavedModel(savedModel, graph.tags.join(","));
  const answered = JSON.parse(fs.readFileSync(requests)).map(({ signature, inputs }) => {
    try {
      return { outputs: run(session, graph.signatureDefs[signature], inputs) };
    } catch (error) {
      return { error: String(error.message) };
    }
  });
  const signatures = Object.keys(graph.signatureDefs);
  const versions = { node: process.version, tensorflow: binding.TF_Version };
  fs.writeFileSync(replies, JSON.stringify({ versions, signatures, answered }));
}

main();
