"""What a cluster's API server is for service accounts: it signs their tokens.

RSA as in RFC 8017, by Python's own numbers and libraries: for tests, which need
no key that is safe.
"""

import base64
import hashlib
import json
import random

EXPONENT = 65537
BITS = 2048
# In front of a digest of SHA-256 that is signed (DER).
PREFIX = bytes.fromhex("3031300d060960864801650304020105000420")


def is_prime(number):
    """Miller and Rabin's test, wrong once in 2^64."""
    odd = number - 1
    twos = 0
    while odd % 2 == 0:
        odd //= 2
        twos += 1
    for _ in range(32):
        power = pow(random.randrange(2, number - 1), odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def prime(bits):
    while True:
        # The two highest bits: a product of two has as many as it should.
        number = random.getrandbits(bits) | (3 << (bits - 2)) | 1
        if (number - 1) % EXPONENT and all(
            number % small for small in (3, 5, 7, 11, 13, 17, 19, 23)
        ):
            if is_prime(number):
                return number


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    def __init__(self, name):
        self.name = name
        first, second = prime(BITS // 2), prime(BITS // 2)
        self.modulus = first * second
        self.secret = pow(EXPONENT, -1, (first - 1) * (second - 1))

    def key_set(self):
        """What `kubectl get --raw /openid/v1/jwks` prints."""
        size = BITS // 8
        return json.dumps(
            {
                "keys": [
                    {
                        "use": "sig",
                        "kty": "RSA",
                        "kid": "one",
                        "alg": "RS256",
                        "n": base64url(self.modulus.to_bytes(size, "big")),
                        "e": base64url(EXPONENT.to_bytes(3, "big")),
                    }
                ]
            }
        )

    def token(self, subject, audience, now):
        """Of one hour, as the kubelet gets it for a pod."""
        claims = {
            "aud": [audience],
            "exp": int(now) + 3600,
            "iat": int(now),
            "iss": self.name,
            "nbf": int(now),
            "sub": subject,
        }
        text = ".".join(
            base64url(json.dumps(part).encode())
            for part in ({"alg": "RS256", "kid": "one"}, claims)
        )
        digest = PREFIX + hashlib.sha256(text.encode()).digest()
        size = BITS // 8
        padded = b"\0\1" + b"\xff" * (size - len(digest) - 3) + b"\0" + digest
        signature = pow(
            int.from_bytes(padded, "big"), self.secret, self.modulus
        )
        return text + "." + base64url(signature.to_bytes(size, "big"))
