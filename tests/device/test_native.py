"""Choosing a library of kernels, and saying what is missing."""

from __future__ import annotations

import pytest

from tests.device.harness import ISAS
from tidegs.device import native
from tidegs.device.cpu import CpuDevice
from tidegs.errors import DeviceError


def test_portable_is_always_there():
    assert native.supported_isas()[-1] == "portable"
    assert "portable" in ISAS


@pytest.mark.parametrize("isa", ISAS)
def test_environment_forces_an_instruction_set(isa, monkeypatch):
    monkeypatch.setenv("TIDEGS_ISA", isa)
    assert native.kernels().tidegs_isa().decode() == isa
    assert CpuDevice(isa=isa).isa == isa


def test_unknown_instruction_set_is_refused(monkeypatch):
    monkeypatch.setenv("TIDEGS_ISA", "mmx")
    with pytest.raises(DeviceError, match="TIDEGS_ISA is 'mmx': set it to one of avx512, avx2, portable"):
        native.kernels()


def test_instruction_set_that_the_cpu_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(native, "_cpu_flags", lambda: frozenset({"sse2"}))
    native.load.cache_clear()
    with pytest.raises(DeviceError, match="'avx2', which this CPU lacks: it has portable"):
        native.load("avx2")


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(native, "library_path", lambda isa: None)
    native.load.cache_clear()
    with pytest.raises(DeviceError, match="kernels for portable are not built"):
        native.load("portable")


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "99999"])
def test_wrong_thread_counts_are_refused(text, monkeypatch):
    monkeypatch.setenv("TIDEGS_THREADS", text)
    with pytest.raises(DeviceError, match="TIDEGS_THREADS"):
        native.thread_count()


def test_thread_count_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TIDEGS_THREADS", "3")
    assert native.thread_count() == 3
