"""The operator's key: made once in its own namespace, kept over operators, and refused when it is no key."""

from __future__ import annotations

import asyncio

import pytest

from coxswain.errors import Refused
from coxswain_operator.children.job_token import TokenKeys
from coxswain_operator.kubernetes import Connection, find_access
from coxswain_operator.kubernetes.token_keys import KEY_SECRET, load_keys
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import MERGE, new_namespace


def place(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets/{KEY_SECRET}"


async def test_operators_that_start_together_have_one_key_and_a_later_one_the_same(api: ApiServer) -> None:
    namespace = new_namespace(api)
    async with Connection(find_access(api.kubeconfig)) as connection:
        found = await asyncio.gather(*(load_keys(connection, namespace) for _ in range(4)))
        assert len(set(found)) == 1 and len(found[0]) == 1 and len(found[0][0]) >= 32
        assert await load_keys(connection, namespace) == found[0]


async def test_a_key_that_is_added_makes_new_tokens_and_the_old_one_is_still_known(api: ApiServer) -> None:
    namespace, job = new_namespace(api), {"metadata": {"name": "demo", "uid": "u"}}
    async with Connection(find_access(api.kubeconfig)) as connection:
        old = TokenKeys(await load_keys(connection, namespace)).tokens(job)
        added = {"stringData": {"key-2": "k" * 32}}
        assert api.http.patch(place(namespace), json=added, headers=MERGE).is_success
        new = TokenKeys(await load_keys(connection, namespace)).tokens(job)
    assert new[1:] == old and new[0] != old[0]


@pytest.mark.parametrize("data", [{}, {"key-1": "short"}])
async def test_a_secret_without_a_usable_key_is_refused_by_name(api: ApiServer, data: dict[str, str]) -> None:
    namespace = new_namespace(api)
    body = {"metadata": {"name": KEY_SECRET}, "stringData": data}
    assert api.http.post(f"/api/v1/namespaces/{namespace}/secrets", json=body).is_success
    async with Connection(find_access(api.kubeconfig)) as connection:
        with pytest.raises(Refused, match=f"Secret {KEY_SECRET} needs keys of at least 32 bytes; add one"):
            await load_keys(connection, namespace)


async def test_an_operator_in_a_namespace_that_does_not_exist_is_refused_by_its_option(api: ApiServer) -> None:
    async with Connection(find_access(api.kubeconfig)) as connection:
        with pytest.raises(Refused, match="--operator-namespace nowhere: the cluster has no such namespace; create it"):
            await load_keys(connection, "nowhere")
