"""`tidegs doctor`: a remedy in every line, a disk that is left as it was, and machines that lack something."""

from __future__ import annotations

import json
import resource

import pytest

from tidegs.cli.main import main
from tidegs.errors import StoreError
from tidegs.report import doctor, gpu
from tidegs.report.doctor import examine
from tidegs.report.probe import disk_rates


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


def test_a_driver_without_a_cuda_torch(monkeypatch):
    monkeypatch.setattr(gpu, "_driver", lambda: "570.1")
    monkeypatch.setattr(gpu, "_torch", lambda: None)
    ((name, state, found, remedy),) = gpu.gpu_findings(measure=False)
    assert (name, state) == ("GPU", "problem")
    assert "570.1" in found
    assert "CUDA build of torch" in remedy


def test_command(tmp_path, capsys):
    assert main(["doctor", str(tmp_path), "--quick"]) == 0
    assert "->" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path), "--quick", "--json"]) == 0
    assert {"name", "state", "found", "remedy"} == set(json.loads(capsys.readouterr().out)[0])
    assert main(["doctor", str(tmp_path / "gone")]) == 2
