// Answers the requests of tests/clients/cpp.py by TensorFlow's C++ API.
//
//     cpp_predict SAVED_MODEL < requests > replies
//
// All numbers are little-endian. A request is a count of tensors, and a reply too, or -1 if the model
// refuses the request. A tensor is its name, its type (an enum of TensorFlow), its rank, its sizes and
// its values; a text is its size and its bytes.

#include <cstdint>
#include <iostream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session_options.h"

namespace tf = tensorflow;

void ReadBytes(void* data, size_t size) {
  if (!std::cin.read(static_cast<char*>(data), size)) {
    std::cerr << "the requests are cut off\n";
    std::exit(1);
  }
}

int64_t ReadNumber() {
  int64_t number;
  ReadBytes(&number, sizeof(number));
  return number;
}

void WriteNumber(int64_t number) {
  std::cout.write(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::string ReadText() {
  std::string text(ReadNumber(), '\0');
  ReadBytes(text.data(), text.size());
  return text;
}

void WriteText(const char* data, size_t size) {
  WriteNumber(size);
  std::cout.write(data, size);
}

tf::Tensor ReadTensor() {
  const auto dtype = static_cast<tf::DataType>(ReadNumber());
  tf::TensorShape shape;
  for (int64_t rank = ReadNumber(); rank > 0; --rank) shape.AddDim(ReadNumber());
  tf::Tensor tensor(dtype, shape);
  if (dtype == tf::DT_STRING) {
    for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.flat<tf::tstring>()(i) = ReadText();
  } else {
    ReadBytes(tensor.data(), tensor.tensor_data().size());
  }
  return tensor;
}

void WriteTensor(const tf::Tensor& tensor) {
  WriteNumber(tensor.dtype());
  WriteNumber(tensor.dims());
  for (int i = 0; i < tensor.dims(); ++i) WriteNumber(tensor.dim_size(i));
  if (tensor.dtype() == tf::DT_STRING) {
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      const tf::tstring& text = tensor.flat<tf::tstring>()(i);
      WriteText(text.data(), text.size());
    }
  } else {
    const auto bytes = tensor.tensor_data();
    std::cout.write(bytes.data(), bytes.size());
  }
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: cpp_predict SAVED_MODEL < requests > replies\n";
    return 2;
  }
  tf::SavedModelBundle model;
  const auto status =
      tf::LoadSavedModel(tf::SessionOptions(), tf::RunOptions(), argv[1], {"serve"}, &model);
  if (!status.ok()) {
    std::cerr << status.ToString() << "\n";
    return 1;
  }
  const tf::SignatureDef& signature = model.GetSignatures().at("serving_default");
  while (std::cin.peek() != EOF) {
    std::vector<std::pair<std::string, tf::Tensor>> inputs;
    for (int64_t count = ReadNumber(); count > 0; --count) {
      const std::string name = ReadText();
      inputs.emplace_back(signature.inputs().at(name).name(), ReadTensor());
    }
    std::vector<std::string> names, fetches;
    for (const auto& [name, info] : signature.outputs()) {
      names.push_back(name);
      fetches.push_back(info.name());
    }
    std::vector<tf::Tensor> outputs;
    const auto ran = model.GetSession()->Run(inputs, fetches, {}, &outputs);
    if (!ran.ok()) {
      WriteNumber(-1);
      continue;
    }
    WriteNumber(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      WriteText(names[i].data(), names[i].size());
      WriteTensor(outputs[i]);
    }
  }
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}
