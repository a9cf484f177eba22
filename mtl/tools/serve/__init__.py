"""Serves exports on one machine, in the protocols of TensorFlow Serving and of KServe (v2).

made = settings.Settings(rest_port=8501, grpc_port=8500)
exports = finding.Exports.of_run("runs/adult")
name, held = server.open_versions(None, exports, made)
asyncio.run(server.serve(name, held, made, lambda running: print(startup.describe(running))))

A request goes through these modules:

rest, open_inference   JSON -> requests.Request, and arrays -> JSON; http_server has the routes
grpc_server            messages -> requests.Request, and arrays -> messages
engine                 limits, versions.Versions, batching.Batcher, metrics, request_log
models                 a loaded export
"""
