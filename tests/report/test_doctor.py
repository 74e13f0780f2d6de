"""`tidegs doctor`: a remedy in every line, a disk that is left as it was, and machines that lack something."""

from __future__ import annotations

import json
import resource
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.cuda.device_files import DeviceFiles, OneFault
from tidegs.cli.main import main
from tidegs.device.cuda import gds
from tidegs.errors import StoreError
from tidegs.report import doctor, gpu
from tidegs.report.doctor import examine
from tidegs.report.probe import device_rates, disk_rates


def by_name(folder, measure=False):
    return {f.name: f for f in examine(folder, measure=measure)}


def test_every_line_has_a_remedy(tmp_path):
    found = examine(tmp_path, measure=False)
    assert {"software", "CPU", "RAM", "store folder", "open files", "memlock", "GPU"} <= {f.name for f in found}
    assert all(f.found and f.remedy for f in found)


def test_the_disk_is_measured_and_left_as_it_was(tmp_path):
    (tmp_path / "mine").write_text("kept")
    rates = disk_rates(tmp_path, 4 << 20)
    assert min(rates.write, rates.read_one, rates.read_many) > 0
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_disk_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StoreError, match="gone"):
        disk_rates(tmp_path / "gone")


def test_a_failing_disk_leaves_no_file(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tidegs.store.files.Files.write_all", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        disk_rates(tmp_path, 4 << 20)
    assert list(tmp_path.iterdir()) == []


def test_one_failed_check_does_not_hide_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(
        doctor, "_file_system", lambda folder: 1 / 0 if False else (_ for _ in ()).throw(OSError("odd"))
    )
    found = examine(tmp_path, measure=False)
    assert any("odd" in f.found and f.state == "problem" for f in found)
    assert any(f.name == "memlock" for f in found)


@pytest.mark.parametrize(("kind", "state"), [("nfs4", "problem"), ("tmpfs", "problem"), ("ext4", "good")])
def test_file_systems(tmp_path, monkeypatch, kind, state):
    monkeypatch.setattr(doctor, "_file_system", lambda folder: kind)
    monkeypatch.setattr(doctor, "disk_free", lambda folder: 1 << 40)
    assert by_name(tmp_path)["store folder"].state == state


def test_few_open_files_and_little_locked_memory(tmp_path, monkeypatch):
    limits = {resource.RLIMIT_NOFILE: (64, 1024), resource.RLIMIT_MEMLOCK: (8 << 20, 8 << 20)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    found = by_name(tmp_path)
    assert found["open files"].state == "problem"
    assert found["open files"].remedy == "ulimit -n 1024"
    assert found["memlock"].state == "note"
    assert "ulimit -l unlimited" in found["memlock"].remedy


def test_a_driver_without_a_cuda_torch(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "_driver", lambda: "570.1")
    monkeypatch.setattr(gpu, "_torch", lambda: None)
    ((name, state, found, remedy),) = gpu.gpu_findings(tmp_path, measure=False)
    assert (name, state) == ("GPU", "problem")
    assert "570.1" in found
    assert "CUDA build of torch" in remedy


class Card:
    """Stands in for torch on a machine with a GPU; its memory is a CPU tensor's."""

    uint8 = torch.uint8

    class version:
        cuda = "13.0"

    class cuda:
        is_available = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 1)
        mem_get_info = staticmethod(lambda i: (23 << 30, 24 << 30))

        @staticmethod
        def get_device_properties(i):
            return SimpleNamespace(name="RTX 4090", major=8, minor=9)

    @staticmethod
    def empty(n, dtype, device):
        return torch.empty(n, dtype=dtype)


@pytest.fixture
def card(monkeypatch):
    monkeypatch.setattr(gpu, "_driver", lambda: "580.1")
    monkeypatch.setattr(gpu, "_torch", lambda: Card)
    monkeypatch.setattr(gpu, "_pcie", lambda torch: ("PCIe", "good", "24 GB/s", "nothing to do"))
    monkeypatch.setattr(gpu, "FILE_NBYTES", 4 << 20)
    monkeypatch.setattr(gpu.gds, "prepare", lambda: None)


@pytest.mark.parametrize("direct", [True, False])
def test_the_mode_and_the_rate_of_kvikio(tmp_path, monkeypatch, card, direct):
    files = DeviceFiles()
    monkeypatch.setattr(gpu.gds, "look", lambda: gpu.Gds(True, direct, f"kvikio 26.10, GDS {direct}"))
    monkeypatch.setattr("tidegs.store.files.Files.open_for_device", lambda self, path: files.open_for_device(path))
    found = {line[0]: line[1:] for line in gpu.gpu_findings(tmp_path, measure=True)}
    assert found["GPUDirect Storage"][0] == ("good" if direct else "note")
    assert found["GPUDirect Storage"][1] == f"kvikio 26.10, GDS {direct}"
    assert "--host-memory 0" in found["GPUDirect Storage"][2]
    assert ("by GPUDirect Storage" if direct else "by kvikio's own buffer") in found["SSD to GPU"][1]
    assert files.moved == {"pread": 4 << 20, "pwrite": 4 << 20}
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_kvikio(tmp_path, monkeypatch, card):
    monkeypatch.setattr(gpu.gds.importlib.util, "find_spec", lambda name: None)
    found = {line[0]: line[1:] for line in gpu.gpu_findings(tmp_path, measure=True)}
    assert found["GPUDirect Storage"][0] == "note"
    assert "kvikio is not installed (pip install kvikio-cu12" in found["GPUDirect Storage"][1]
    assert "SSD to GPU" not in found


def test_a_kvikio_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(StoreError, match=r"kvikio's transfers .* \(Linux system/library"):
        device_rates(tmp_path, torch.empty(2 << 20, dtype=torch.uint8), DeviceFiles(OneFault("pread", 1, "words")))
    with pytest.raises(StoreError, match=r"cut short"):
        device_rates(tmp_path, torch.empty(2 << 20, dtype=torch.uint8), DeviceFiles(OneFault("pwrite", 1, "end")))
    assert list(tmp_path.iterdir()) == []


class Kvikio(ModuleType):
    """What of kvikio 26.10 is asked: as it answers on a machine with a driver."""

    def __init__(self, available: bool, nvfs: int, compat: bool) -> None:
        super().__init__("kvikio")
        self.__version__ = "26.10.00"
        self.defaults, self.cufile_driver = ModuleType("kvikio.defaults"), ModuleType("kvikio.cufile_driver")
        self.defaults.is_compat_mode_preferred = lambda: compat
        self.cufile_driver.get = {"is_gds_available": available, "major_version": nvfs}.__getitem__


@pytest.mark.parametrize(
    ("kvikio", "usable", "direct", "says"),
    [
        (Kvikio(True, 2, False), True, True, "with GPUDirect Storage"),
        (Kvikio(True, 0, False), True, False, "no nvidia-fs driver"),
        (Kvikio(False, 0, False), True, False, "no nvidia-fs driver"),
        (Kvikio(True, 2, True), True, False, "KVIKIO_COMPAT_MODE"),
        (ModuleType("kvikio"), False, False, "kvikio cannot be used"),
    ],
)
def test_what_kvikio_says(monkeypatch, kvikio, usable, direct, says):
    monkeypatch.setattr(gds.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "kvikio", kvikio)
    for name in ("defaults", "cufile_driver"):
        monkeypatch.setitem(sys.modules, f"kvikio.{name}", getattr(kvikio, name, None))
    found = gds.look()
    assert (found.usable, found.direct) == (usable, direct)
    assert says in found.says
    assert "\n" not in found.says


def test_command(tmp_path, capsys):
    assert main(["doctor", str(tmp_path), "--quick"]) == 0
    assert "->" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path), "--quick", "--json"]) == 0
    assert {"name", "state", "found", "remedy"} == set(json.loads(capsys.readouterr().out)[0])
    assert main(["doctor", str(tmp_path / "gone")]) == 2
