"""What held a run up, and which budget would serve it better, in sentences.

Invariant: each sentence gives the figures that it rests on.
"""

from __future__ import annotations

from typing import Any

from tidegs.machine import human

_STALL_SHARE = 0.05  # below it transfers are hidden behind compute
_ROOM_SHARE = 0.7  # a tier used less than this was given too much


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
    timed = {k: v["seconds"] for k, v in links.items() if v["seconds"]}
    where = ""
    if timed:
        link = max(timed, key=timed.__getitem__)
        where = f"; the busiest link was {links[link]['label']}, {human(links[link]['bytes_a_second'])} a second"
    return f"moving blocks: the trainer waited {stall:.1%} of the time{where}"


def advice(facts: dict[str, Any]) -> list[str]:
    """What to change, most useful first; empty where nothing stands out."""
    out = []
    flow, tiers = facts["flow"], facts["tiers"]
    stall, images = flow["stall_share"], flow["image_wait_share"]
    arena, host = tiers.get("arena"), tiers.get("host")
    scene = facts["scene_size"]["bytes"]
    if facts["in_core"]:
        if scene:
            out.append(f"The scene fitted the arena ({human(scene)}); nothing had to move.")
    elif stall is not None and stall >= _STALL_SHARE:
        if facts["order"] == "shuffle":
            out.append("Cameras came in shuffled order, which reuses few blocks: try --order cache.")
        read = facts["links"].get("read", {}).get("bytes") or 0
        upload = facts["links"].get("upload", {}).get("bytes") or 0
        if host and host["budget"] and read > upload / 4:
            out.append(
                f"Most loads came from the SSD: raise --host-memory above {human(host['budget'])}"
                + (f" (the whole scene is {human(scene)})." if scene else ".")
            )
        if arena and arena["budget"]:
            out.append(f"Raise --device-memory above {human(arena['budget'])}, so that fewer blocks have to move.")
    if images is not None and images >= _STALL_SHARE:
        out.append("Raise --image-memory, or use --data-factor, so that images are decoded ahead of their use.")
    for tier, flag in (("arena", "--device-memory"), ("host", "--host-memory"), ("images", "--image-memory")):
        found = tiers.get(tier)
        if found and found["budget"] and found["peak"] and found["peak"] < _ROOM_SHARE * found["budget"]:
            out.append(f"{flag} {human(found['peak'])} would have done; {human(found['budget'])} were given.")
    if facts["dropped_blocks"]:
        out.append(
            f"{facts['dropped_blocks']} visible blocks were dropped: this is an error of tidegs, please report it."
        )
    return out
