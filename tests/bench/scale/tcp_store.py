#!/usr/bin/env python3
"""The rendezvous and the barrier of many clients over torch's TCPStore, which
a process of its own serves with libuv, as torchrun's does.

  tcp_store.py rendezvous CLIENTS THREADS
  tcp_store.py barrier CLIENTS ROUNDS PROCESSES

prints the seconds of each as JSON."""

import datetime
import json
import multiprocessing
import sys
import threading
import time

from torch.distributed import TCPStore

TIMEOUT = datetime.timedelta(minutes=3)
HOST = "127.0.0.1"


def serve(pipe):
    store = TCPStore(
        HOST, 0, is_master=True, wait_for_workers=False, use_libuv=True
    )
    pipe.send(store.port)
    pipe.recv()  # until the other end is closed, or sends


def connect(port):
    return TCPStore(
        HOST, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT
    )


class Server:
    """A context manager: the port."""

    def __enter__(self):
        self._pipe, other = multiprocessing.Pipe()
        self._process = multiprocessing.Process(
            target=serve, args=(other,), daemon=True
        )
        self._process.start()
        return self._pipe.recv()

    def __exit__(self, *_):
        self._process.kill()
        self._process.join()


def on_threads(count, work):
    threads = [
        threading.Thread(target=work, args=(number,)) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rendezvous(port, clients, threads):
    """From the first connection until each client has a rank and the addresses
    of all: the same that an answer to Join has. Threads take the clients in
    turn, each step of all clients before the next step, so that nothing ever
    has to wait; and each reads all addresses in one request."""
    stores = [None] * clients
    ranks = [0] * clients
    keys = ["address/%d" % rank for rank in range(clients)]
    address = "node-000/0 127.0.0.1:29500 0123456789abcdef"
    together = threading.Barrier(threads)
    read = [0] * threads

    def work(thread):
        own = range(thread, clients, threads)
        for client in own:
            stores[client] = connect(port)
            ranks[client] = stores[client].add("ranks", 1) - 1
            stores[client].set(keys[ranks[client]], address)
        together.wait()
        for client in own:
            addresses = stores[client].multi_get(keys)
            read[thread] += sum(map(len, addresses))

    start = time.perf_counter()
    on_threads(threads, work)
    seconds = time.perf_counter() - start
    if sorted(ranks) != list(range(clients)):
        raise RuntimeError("ranks are wrong")
    if sum(read) != clients * clients * len(address):
        raise RuntimeError("%d bytes were read" % sum(read))
    return seconds


def wait_for_all(store, size, key):
    """The barrier of torch.distributed over a store."""
    if store.add(key, 1) == size:
        store.set(key + "/done", "1")
    store.wait([key + "/done"], TIMEOUT)


def barrier_process(port, clients, size, rounds, start, ends):
    """Some of the clients, a thread each."""
    stores = [connect(port) for _ in range(clients)]
    together = threading.Barrier(clients)

    def work(number):
        for round_number in range(rounds):
            if together.wait() == 0:
                start.wait()
            together.wait()
            wait_for_all(stores[number], size, "barrier/%d" % round_number)
            if together.wait() == 0:
                ends.wait()

    on_threads(clients, work)


def barriers(port, size, rounds, processes):
    start = multiprocessing.Barrier(processes + 1)
    ends = multiprocessing.Barrier(processes + 1)
    workers = [
        multiprocessing.Process(
            target=barrier_process,
            args=(port, size // processes, size, rounds, start, ends),
            daemon=True,
        )
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    times = []
    for _ in range(rounds):
        start.wait()
        begun = time.perf_counter()
        ends.wait()
        times.append(time.perf_counter() - begun)
    for worker in workers:
        worker.join()
    return times


def main(arguments):
    what, *numbers = arguments
    numbers = [int(number) for number in numbers]
    with Server() as port:
        if what == "rendezvous":
            print(json.dumps(rendezvous(port, *numbers)))
        else:
            print(json.dumps(barriers(port, *numbers)))


if __name__ == "__main__":
    main(sys.argv[1:])
