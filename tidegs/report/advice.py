"""What held a run up, and which budget would serve it better, in sentences.

Invariant: each sentence gives the figures that it rests on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegs.machine import human

_STALL_SHARE = 0.05  # below it transfers are hidden behind compute
_ROOM_SHARE = 0.7  # a tier used less than this was given too much
_GAIN = 0.5  # of the loads: a larger arena is worth naming


def bottleneck(facts: dict[str, Any]) -> str:
    """One sentence: where the time went."""
    flow, links = facts["flow"], facts["links"]
    stall, images = flow["stall_share"], flow["image_wait_share"]
    if stall is None:
        return "not known: the log has no line yet"
    if stall < _STALL_SHARE and (images is None or images < _STALL_SHARE):
        return f"compute: the trainer waited for blocks {stall:.1%} of the time"
    if images is not None and images > stall:
        return f"image decoding: the trainer waited for images {images:.1%} of the time"
    loads = {k: v["seconds"] for k, v in links.items() if k != "write" and v["seconds"]}
    where = ""
    if loads:
        link = links[max(loads, key=loads.__getitem__)]
        where = f"; the busiest link on their way was {link['label']}, at {human(link['bytes_a_second'])} a second"
    return f"moving blocks: the trainer waited for them {stall:.1%} of the time{where}"


def advice(facts: dict[str, Any]) -> list[str]:
    """What to change, most useful first; empty where nothing stands out."""
    out = list(_about_images(facts))
    if facts["in_core"]:
        out.append("The scene fitted the arena, so nothing had to move.")
    else:
        out += _about_blocks(facts)
    out += _about_room(facts)
    if facts["dropped_blocks"]:
        out.append(f"{facts['dropped_blocks']} visible blocks were dropped: an error of tidegs, please report it.")
    return out


def _about_images(facts: dict[str, Any]) -> Iterator[str]:
    share = facts["flow"]["image_wait_share"]
    if share is not None and share >= _STALL_SHARE:
        yield "Raise --image-memory, or use --data-factor, so that images are decoded ahead of their use."


def _about_blocks(facts: dict[str, Any]) -> Iterator[str]:
    stall, tiers, slot = facts["flow"]["stall_share"], facts["tiers"], facts["scene_size"]["slot_bytes"]
    if stall is not None and stall >= _STALL_SHARE:
        if facts["order"] == "shuffle":
            yield "Cameras came in shuffled order, which reuses few blocks: try --order cache."
        yield from _larger_arena(facts, slot)
        read, upload = (facts["links"].get(k, {}).get("blocks") or 0 for k in ("read", "upload"))
        host, scene = tiers.get("host", {}).get("budget"), facts["scene_size"]["bytes"]
        if host and upload and read > upload / 4:
            whole = f"; the whole scene is {human(scene)}" if scene else ""
            yield f"{read / upload:.0%} of the loads came from the SSD: raise --host-memory above {human(host)}{whole}."
    sets = facts["working_set"]
    if sets and slot and sets["split_share"]:
        yield (
            f"{sets['split_share']:.0%} of the cameras need more blocks than the arena has and are rendered in parts; "
            f"--device-memory {human(sets['greatest'] * slot)} would hold any of them whole."
        )


def _larger_arena(facts: dict[str, Any], slot: int | None) -> Iterator[str]:
    """The least arena of the curve that halves the loads."""
    curve = facts["loads_curve"]
    if not curve or not slot:
        return
    now = curve["marks"]["arena"]
    for blocks, loads in zip(curve["blocks"], curve["loads"], strict=True):
        if blocks > now["blocks"] and loads <= _GAIN * now["loads"]:
            yield (
                f"--device-memory {human(blocks * slot)} (now {human(now['blocks'] * slot)}) could cut the loads "
                f"from {now['loads']:.1f} to {loads:.1f} blocks a visit."
            )
            return


def _about_room(facts: dict[str, Any]) -> Iterator[str]:
    for tier, flag in (("arena", "--device-memory"), ("host", "--host-memory"), ("images", "--image-memory")):
        found = facts["tiers"].get(tier)
        if found and found["budget"] and found["peak"] and found["peak"] < _ROOM_SHARE * found["budget"]:
            yield f"{flag} {human(found['peak'])} would have done; {human(found['budget'])} were given."
