"""Starts programs in Python that find their packages loaded.

    python preloaded.py serve SOCKET MODULE...
    python -I -S preloaded.py PROGRAM [ARGUMENT]...
    python -I -S preloaded.py -m MODULE [ARGUMENT]...

Loading torch takes seconds of a processor. The first form does it once, and
then forks a process for each program that the others name. These stand for it
with who has started them: the program has their environment, folder and files,
signals to them reach it, they end as it does, and it is killed if they are.
They find the socket in the variable PRELOADED.
"""

import gc
import json
import os
import selectors
import signal
import socket
import sys

_HANDED_ON = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
    signal.SIGUSR1, signal.SIGUSR2,
)


def stand_for(arguments):
    """Has the server run a program, and ends as that does."""
    # Until it is known whom to hand them on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
    server = socket.socket(socket.AF_UNIX)
    server.connect(os.environ["PRELOADED"])
    request = json.dumps({
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }).encode()
    socket.send_fds(server, [_number(len(request))], [0, 1, 2])
    server.sendall(request)
    program = int.from_bytes(_read(server, 4), "big")

    def hand_on(number, frame):
        try:
            os.kill(program, number)
        except ProcessLookupError:
            pass  # It has just ended.

    for number in _HANDED_ON:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    status = int.from_bytes(_read(server, 4), "big")
    if os.WIFSIGNALED(status):
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _number(value):
    return value.to_bytes(4, "big")


def _read(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            sys.exit("preloaded.py: the other end has closed the connection")
        data += more
    return data


class Server:
    """Forks programs until its standard input ends. It has no thread, so that
    nothing is half done in a fork."""

    def __init__(self, path):
        self._programs = {}  # each one's number, by its connection
        self._selector = selectors.DefaultSelector()
        self._ended, wake = socket.socketpair()
        wake.setblocking(False)
        self._ended.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake.fileno())
        self._wake = wake
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        for each in (sys.stdin, self._ended, self._listener):
            self._selector.register(each, selectors.EVENT_READ)

    def serve(self):
        """Returns in a program, what is asked of it."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    for connection in list(self._programs):
                        self._kill(connection)
                    sys.exit(0)
                if key.fileobj is self._ended:
                    self._reap()
                elif key.fileobj is self._listener:
                    request = self._start()
                    if request:
                        return request
                elif key.fileobj in self._programs:
                    self._kill(key.fileobj)

    def _start(self):
        connection, _ = self._listener.accept()
        head, files, _, _ = socket.recv_fds(connection, 4, 3)
        if not head:  # It was killed before it could ask.
            connection.close()
            return None
        request = json.loads(_read(connection, int.from_bytes(head, "big")))
        program = os.fork()
        # By both, so that neither goes on before.
        os.setpgid(program, program)
        if program == 0:
            self._become(files, connection)
            return request
        for file in files:
            os.close(file)
        self._programs[connection] = program
        self._selector.register(connection, selectors.EVENT_READ)
        try:
            connection.sendall(_number(program))
        except BrokenPipeError:
            pass  # It was killed: the selector has the end of its connection.
        return None

    def _become(self, files, connection):
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for each in (
            self._ended, self._wake, self._listener, connection,
            *self._programs,
        ):
            each.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)

    def _reap(self):
        try:
            self._ended.recv(4096)
        except BlockingIOError:
            pass
        numbers = {program: each for each, program in self._programs.items()}
        while True:
            try:
                program, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if program == 0:
                return
            connection = numbers[program]
            # Those that it has left behind go too, as a launcher's do.
            self._kill(connection)
            try:
                connection.sendall(_number(status))
            except BrokenPipeError:
                pass  # It was killed.
            connection.close()
            del self._programs[connection]

    def _kill(self, connection):
        """Kills a program, with what it has started."""
        if connection.fileno() in self._selector.get_map():
            self._selector.unregister(connection)
        try:
            os.killpg(self._programs[connection], signal.SIGKILL)
        except ProcessLookupError:
            pass


def run(request):
    """Runs a program in this process, which is a fork of the server."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    arguments = request["arguments"]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    path = arguments[0]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        stand_for(sys.argv[1:])
    import importlib
    import runpy
    import types

    del sys.path[0]  # It is that of the program.
    for name in sys.argv[3:]:
        importlib.import_module(name)
    # A program that looked for garbage here, as each does when it ends, would
    # have the pages of all that is loaded copied: a second of a processor.
    gc.collect()
    gc.freeze()
    server = Server(sys.argv[2])
    print("PRELOADED", flush=True)
    run(server.serve())
