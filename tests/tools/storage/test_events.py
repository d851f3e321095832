import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.errors import LockedError, StoreError
from stitch_tools.storage.events import EventLog, parse_events, read_events


def write_log(path: Path, payloads: list[dict[str, object]]) -> bytes:
    with EventLog(path) as log:
        for number, payload in enumerate(payloads):
            log.append(f"kind_{number}", payload)
    return path.read_bytes()


def test_events_come_back_in_order(tmp_path: Path) -> None:
    write_log(tmp_path / "e.jsonl", [{"a": 1}, {"b": "ü\n"}])
    events = read_events(tmp_path / "e.jsonl")
    assert [(event.seq, event.kind, event.payload) for event in events] == [
        (0, "kind_0", {"a": 1}),
        (1, "kind_1", {"b": "ü\n"}),
    ]


def test_a_line_that_is_nested_too_deeply_is_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"[" * 20000 + b"\n" + write_log(tmp_path / "whole.jsonl", [{}]))
    with pytest.raises(StoreError, match="event 0 is damaged"):
        read_events(path)


def test_a_log_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "e.jsonl")
    for read in (read_events, EventLog):
        with pytest.raises(StoreError, match=r"cannot read .*: it is no regular file"):
            read(tmp_path / "e.jsonl")


@pytest.mark.parametrize("mine", [b"one line without an end", b"one line\n", b""])
def test_a_log_that_is_a_link_is_not_written_to(tmp_path: Path, mine: bytes) -> None:
    (tmp_path / "mine").write_bytes(mine)
    (tmp_path / "e.jsonl").symlink_to("mine")
    (tmp_path / "none.jsonl").symlink_to("nothing")
    for name in ("e.jsonl", "none.jsonl"):
        with pytest.raises(StoreError, match="is a link"):
            EventLog(tmp_path / name)
    # Neither is what looks like a torn end cut off.
    assert (tmp_path / "mine").read_bytes() == mine
    assert not (tmp_path / "nothing").exists()


def test_a_log_cut_at_any_byte_replays_its_whole_events_and_goes_on(tmp_path: Path) -> None:
    data = write_log(tmp_path / "whole.jsonl", [{"n": n, "text": "x" * n} for n in range(6)])
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert len(read_events(path)) == whole
        with EventLog(path) as log:
            assert len(log.events) == whole
            assert log.append("next").seq == whole
        assert len(read_events(path)) == whole + 1


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_with_a_reason(data: bytes) -> None:
    try:
        events, used = parse_events(data)
    except StoreError:
        pass
    else:
        assert used <= len(data)
        assert [event.seq for event in events] == list(range(len(events)))


def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    lines = write_log(path, [{}, {}, {}]).splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + lines[2])
    with pytest.raises(StoreError, match="event 1 is damaged"):
        read_events(path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    event = json.loads(write_log(path, [{}]))
    path.write_text(json.dumps(event | {"schema_version": 99, "unknown": 1}) + "\n", encoding="utf-8")
    with pytest.raises(StoreError, match="newer version"):
        read_events(path)


HOLDER = """
import sys, pathlib
from stitch_tools.storage.events import EventLog
log = EventLog(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_told_pid_and_host_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=f"process {holder.pid} on "):
            EventLog(path)
        holder.kill()
    EventLog(path).close()


def test_an_interruption_leaves_a_whole_event_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e.jsonl"
    before = write_log(path, [{"a": 1}])

    def press(handle: int) -> None:
        raise KeyboardInterrupt

    with EventLog(path) as log:
        with monkeypatch.context() as patch:
            patch.setattr("stitch_tools.storage.events.os.fsync", press)
            with pytest.raises(KeyboardInterrupt):
                log.append("kind_1")
        assert path.read_bytes() == before
        log.append("stopped")
    assert [(event.seq, event.kind) for event in read_events(path)] == [(0, "kind_0"), (1, "stopped")]
