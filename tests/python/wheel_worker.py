"""One rank of wheel_test, with the installed package: wheel_worker.py SCENE.

Neighbours are other libraries of the process that have gRPC or protobuf in
them too, loaded in one order or the other.
"""

import array
import os
import sys


def check(condition, *what):
    if not condition:
        raise AssertionError(what)


def step(session):
    """All ranks exchange by our sockets, and decide a step."""
    data = array.array("d", [session.rank, 2.5])
    session.all_reduce(data)
    check(list(data) == [1, 5], data)
    session.schedule.announce(1)
    session.schedule.await_grant()
    check(session.schedule.decide().commit)


def join(**named):
    import coxswain

    return coxswain.Session.join(backend="tcp", join_timeout=60, **named)


def alone():
    """With nothing but what the wheel brings, and the system's C and C++."""
    with join() as session:
        check(session.world_size == 2)
        step(session)
        check("torch" not in sys.modules)
        here = os.path.realpath(sys.prefix)
        with open("/proc/self/maps", encoding="utf-8") as file:
            mapped = {line.split()[-1] for line in file if ".so" in line}
        ours = {path for path in mapped if path.startswith(here)}
        check(any("libgrpc" in path for path in ours), mapped)
        for word in ("grpc", "protobuf", "absl", "ssl", "crypto"):
            others = {
                path for path in mapped - ours
                if os.path.basename(path).startswith("lib" + word)
            }
            check(not others, others)


def torch_step(group):
    """The same by torch's gloo, and a backward pass; returns the tensor."""
    import torch

    data = torch.ones(3)
    group.all_reduce(data)
    check(data.tolist() == [2, 2, 2], data)
    model = torch.nn.Linear(3, 2)
    model(data).sum().backward()
    check(model.weight.grad is not None)
    return data


def beside_torch(session):
    import torch.distributed

    group = torch.distributed
    group.init_process_group(
        "gloo",
        init_method="file://" + os.environ["WHEEL_TEST_FILE"],
        rank=session.rank,
        world_size=session.world_size,
    )
    # Until the group has gone: torch 2.6's may wait for ever, with Python's
    # lock, for its thread that needs the lock to free a tensor.
    kept = []
    for _ in range(3):
        step(session)
        kept.append(torch_step(group))
    group.destroy_process_group()


def fork(session):
    """A child uses torch, and leaves the session alone."""
    child = os.fork()
    if child == 0:
        import coxswain
        import torch

        code = 1
        try:
            session.store.set("a", "b")
        except coxswain.Error as error:
            named = "was forked from process" in str(error)
            code = 0 if named and torch.ones(3).sum() == 3 else 2
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    check(status == 0, status)
    step(session)


def ours_first():
    with join() as session:
        step(session)
        beside_torch(session)
        fork(session)


def torch_first():
    import torch

    check(torch.ones(2).sum() == 2)
    with join() as session:
        beside_torch(session)
        fork(session)


def torch_global():
    """Its symbols come before those of whatever is loaded later."""
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    torch_first()


def grpc_call():
    """A call of grpcio's own, with a message of protobuf's."""
    import concurrent.futures

    import grpc
    from google.protobuf import wrappers_pb2

    message = wrappers_pb2.StringValue
    pool = concurrent.futures.ThreadPoolExecutor(1)
    server = grpc.server(pool)
    server.add_generic_rpc_handlers((
        grpc.method_handlers_generic_handler("test.Echo", {
            "Call": grpc.unary_unary_rpc_method_handler(
                lambda request, context: request,
                request_deserializer=message.FromString,
                response_serializer=message.SerializeToString,
            ),
        }),
    ))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel("127.0.0.1:%d" % port) as channel:
        call = channel.unary_unary(
            "/test.Echo/Call",
            request_serializer=message.SerializeToString,
            response_deserializer=message.FromString,
        )
        check(call(message(value="it"), timeout=30).value == "it")
    server.stop(None).wait(30)


def grpc_first():
    grpc_call()
    with join() as session:
        step(session)
        grpc_call()
        step(session)


def grpc_last():
    with join() as session:
        step(session)
        grpc_call()
        step(session)


def skew():
    """Prints the coordinator's answer to a library of another version."""
    import coxswain

    try:
        with join() as session:
            step(session)
    except coxswain.Error as error:
        print("REFUSED", error.code.name, error, flush=True)
        sys.exit(3)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("DONE", flush=True)
