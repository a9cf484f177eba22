"""Serves exports on one machine, in the protocols of TensorFlow Serving and of KServe (v2).

config = settings.Settings(rest_port=8501, grpc_port=8500)
exports = finding.Exports.of_run("runs/adult")
name, models = server.open_versions(None, exports, config)
asyncio.run(server.serve(name, models, config, lambda running: print(startup.describe(running))))

A request passes through these modules:

http_server            routes, tokens, errors
rest, open_inference   JSON -> requests.Request, and arrays -> JSON
grpc_server            messages -> requests.Request, and arrays -> messages
engine                 limits, versions.Versions, batching.Batcher, metrics, request_log
models                 a loaded export
"""
