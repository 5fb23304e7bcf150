"""Reading a token's claims, and verifying them with a key or a key set."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from token_endpoint import KEY, TokenEndpoint, jwt_for, raw

from kiwi_worker.errors import AuthenticationError, ProtocolError, SettingsError, TokenUnavailable
from kiwi_worker.kiwi.claims import Claims, TokenVerifier, read_claims
from kiwi_worker.transport import Endpoint

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CLAIMS = {"sub": "worker-1", "role": "worker", "service_id": "svc", "exp": 2_000_000_000}


def pem(key: Any) -> str:
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return str(public.decode())


def signed(key: Any = RSA_KEY, kid: str | None = None, **claims: Any) -> str:
    headers = {"kid": kid} if kid else None
    return jwt.encode({**CLAIMS, **claims}, key, algorithm="RS256", headers=headers)


def key_set(**keys: Any) -> bytes:
    entries = []
    for kid, key in keys.items():
        entry = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
        entries.append({**entry, "kid": kid, "use": "sig", "alg": "RS256"})
    return json.dumps({"keys": entries}).encode()


@pytest.fixture
def by_set(endpoint: TokenEndpoint) -> TokenVerifier:
    return TokenVerifier(jwks=Endpoint(f"{endpoint.url}/keys/jwks.json"))


def test_claims_are_read_without_a_key() -> None:
    claims = read_claims(jwt_for(iat=5, exp=65))
    assert claims == Claims(sub="worker-1", role="worker", service_id="svc", iat=5, exp=65)


@pytest.mark.parametrize("token", ["opaque", "a.b.c", "", "e30.W10.x", jwt_for()[:-50].rpartition(".")[0]])
def test_a_token_that_is_no_jwt_has_no_claims(token: str) -> None:
    assert read_claims(token) == Claims()


def test_claims_of_the_wrong_type_count_as_absent() -> None:
    token = jwt.encode({"service_id": 7, "sub": "w", "role": True}, KEY, algorithm="HS256")
    assert read_claims(token) == Claims(sub="w", role=True)


def test_a_shared_secret_verifies() -> None:
    assert TokenVerifier(key=KEY)(jwt_for()).service_id == "svc"


@pytest.mark.parametrize("skew", [30, -3600])
def test_times_are_not_judged_by_our_clock(skew: int) -> None:
    then = int(time.time()) + skew
    token = jwt_for(iat=then, nbf=then, exp=then + 60)
    assert TokenVerifier(key=KEY)(token).exp == then + 60


@pytest.mark.parametrize("token", [jwt_for()[:-4] + "AAAA", "opaque", signed()])
def test_a_token_that_cannot_be_verified_is_refused_by_name(token: str) -> None:
    with pytest.raises(AuthenticationError, match="check that jwt_key belongs to the middleware") as caught:
        TokenVerifier(key=KEY)(token)
    assert token not in str(caught.value)


def test_a_token_without_a_signature_is_refused() -> None:
    unsigned = jwt.encode(CLAIMS, None, algorithm="none")
    for verifier in (TokenVerifier(key=KEY), TokenVerifier(key=pem(RSA_KEY))):
        with pytest.raises(AuthenticationError):
            verifier(unsigned)


def test_a_public_key_verifies_and_is_never_taken_for_a_shared_secret() -> None:
    verifier = TokenVerifier(key=pem(RSA_KEY))
    assert verifier(signed()).sub == "worker-1"
    with pytest.raises(AuthenticationError):
        verifier(jwt_for())
    with pytest.raises(AuthenticationError):
        verifier(signed(OTHER_KEY))


@pytest.mark.parametrize("key", ["-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----", None])
def test_a_key_that_does_not_fit_is_a_settings_error_that_does_not_repeat_it(key: str | None) -> None:
    key = key or pem(ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(SettingsError, match="jwt_key: the key does not fit") as caught:
        TokenVerifier(key=key)(signed())
    assert key not in str(caught.value)


def test_a_key_set_is_fetched_once_and_again_for_an_unknown_key(
    endpoint: TokenEndpoint, by_set: TokenVerifier
) -> None:
    endpoint.reply_with(raw(key_set(old=RSA_KEY)), raw(key_set(old=RSA_KEY, new=OTHER_KEY)))
    for _ in range(3):
        assert by_set(signed(kid="old")).sub == "worker-1"
    assert endpoint.paths == ["/keys/jwks.json"]
    assert by_set(signed(OTHER_KEY, kid="new")).sub == "worker-1"
    assert len(endpoint.paths) == 2


def test_a_set_of_one_key_serves_tokens_that_name_none(
    endpoint: TokenEndpoint, by_set: TokenVerifier
) -> None:
    endpoint.reply_with(raw(key_set(only=RSA_KEY)))
    assert by_set(signed()).sub == "worker-1"


def test_an_unknown_key_is_refused_by_name(endpoint: TokenEndpoint, by_set: TokenVerifier) -> None:
    endpoint.reply_with(raw(key_set(old=RSA_KEY)))
    with pytest.raises(
        AuthenticationError, match=r"signed with the key 'unknown'.*check that jwks_url"
    ) as caught:
        by_set(signed(kid="unknown"))
    assert caught.value.status is None
    with pytest.raises(AuthenticationError, match="is no JWT"):
        by_set("opaque")
    with pytest.raises(AuthenticationError):
        by_set(signed(OTHER_KEY, kid="old"))


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"keys": []}', b'{"keys": [{"kty": "x"}]}', b'{"keys": 7}']
)
def test_what_is_no_key_set_is_an_error_that_says_so(
    endpoint: TokenEndpoint, by_set: TokenVerifier, body: bytes
) -> None:
    endpoint.reply_with(raw(body))
    with pytest.raises(ProtocolError, match="jwks_url did not answer with a JSON Web Key Set"):
        by_set(signed(kid="a"))


def test_an_outage_of_the_key_set_passes_and_a_wrong_address_does_not(
    endpoint: TokenEndpoint, by_set: TokenVerifier
) -> None:
    endpoint.reply_with(raw(b"", 503), raw(b"", 404), raw(key_set(a=RSA_KEY)))
    with pytest.raises(TokenUnavailable, match="key set at jwks_url was answered with status 503"):
        by_set(signed(kid="a"))
    with pytest.raises(SettingsError, match="jwks_url: it was answered with status 404"):
        by_set(signed(kid="a"))
    assert by_set(signed(kid="a")).sub == "worker-1"


def test_public_keys_without_their_package_are_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jwt.algorithms, "has_crypto", False)
    with pytest.raises(SettingsError, match=r"jwt_key: .*pip install 'kiwi-worker\[jwks\]'"):
        TokenVerifier(key=pem(RSA_KEY))(signed())


def test_pyjwt_is_not_loaded_before_the_first_token() -> None:
    code = "import sys, kiwi_worker.kiwi.tokens; sys.exit('jwt' in sys.modules or 'requests' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
