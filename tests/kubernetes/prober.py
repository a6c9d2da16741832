#!/usr/bin/env python3
"""Asks for health by gRPC, as a kubelet does; runs in the node's network.

Reads lines "HOST:PORT SERVICE", and answers each with the line "SERVING",
"NOT_SERVING", or what went wrong.
"""

import sys

import grpc

NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def check(address, service):
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=lambda text: bytes([0x0A, len(text)])
            + text.encode(),
            response_deserializer=lambda data: data,
        )
        try:
            answer = call(service, timeout=5)
        except grpc.RpcError as error:
            return error.code().name
    # One field, the first, of type enum.
    return NAMES[answer[1] if len(answer) == 2 and answer[0] == 8 else 0]


if __name__ == "__main__":
    for line in sys.stdin:
        print(check(*line.split()), flush=True)
