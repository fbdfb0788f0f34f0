"""What is stored or sent has the bytes of `golden`: another release reads it, and has written it."""

import inspect
import json

import msgspec
import numpy as np
import pytest

from coxswain import block, boxes, config, index, layout, planlog
from coxswain.membership import values as membership
from coxswain.plan import values as plan
from coxswain.wire import blocks, checkpoints, joining, reports
from coxswain.wire import steps as wire_steps
from coxswain_cli.reporting import model
from coxswain_coordinator import steps
from coxswain_link import flight, handover
from coxswain_operator.reconcile import status
from tests.unit import golden_contract, golden_samples
from tests.unit.golden_samples import NAMES, NOT_ENCODED, full, least, recorded

MODULES = (
    blocks, checkpoints, joining, reports, wire_steps,
    planlog, block, boxes, config, layout, membership, plan, steps, flight, handover, status, model,
)  # fmt: skip
CASES = [(name, how) for name in NAMES for how in (full, least)]
GOLDEN = recorded()


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_sample_is_encoded_as_its_golden_bytes_and_decoded_from_them(name, how):
    type_ = NAMES[name]
    content, value = GOLDEN[f"{name}, {how.__name__}"], how(type_)
    assert msgspec.json.encode(value) == content
    assert msgspec.json.decode(content, type=type_) == value


@pytest.mark.parametrize("name", NAMES)
def test_no_field_of_a_full_sample_has_its_default(name):
    value = full(NAMES[name])
    for field in msgspec.structs.fields(NAMES[name]):
        assert getattr(value, field.name) != field.default


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_struct_of_a_module_that_is_stored_or_sent_has_golden_bytes(module):
    structs = [at for _, at in inspect.getmembers(module, inspect.isclass) if issubclass(at, msgspec.Struct)]
    defined = {at for at in structs if at.__module__ == module.__name__ and at.__struct_fields__}
    assert defined
    assert defined <= set(NAMES.values()) | NOT_ENCODED


def test_every_golden_line_has_a_sample():
    assert list(golden_samples.entries()) == [name for name in GOLDEN if name]


CONTRACT = json.loads(golden_contract.CONTRACT.read_text())


@pytest.mark.parametrize("part", CONTRACT)
def test_paths_names_keys_hashes_and_binary_forms_are_the_golden_ones(part):
    assert golden_contract.contract()[part] == CONTRACT[part]


def test_no_golden_reason_environment_variable_or_label_is_missing_from_the_code():
    assert set(json.loads(golden_contract.STRINGS.read_text())) - golden_contract.literals() == set()


def test_a_recorded_block_index_is_read_as_it_was_written():
    found, wanted = index.decode(golden_contract.BLOCK.read_bytes()), golden_contract.BLOCK_INDEX
    for mine, theirs in zip(msgspec.structs.astuple(found), msgspec.structs.astuple(wanted), strict=True):
        assert np.array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def test_a_recorded_hand_over_is_read_as_it_was_written():
    found, wanted = golden_contract.unpacked(bytes.fromhex(CONTRACT["binary"]["step"])), golden_contract.ARRAYS
    assert (found.generation, found.step, found.slices) == (wanted.generation, wanted.step, wanted.slices)
    for part in ("tokens", "labels", "positions"):
        assert np.array_equal(getattr(found, part), getattr(wanted, part))
