"""Windows: rectangles of an image that are drawn one by one where device memory is short.

Invariant: windows begin and end on tiles (or the image's edge), so a tile's splats and their order are those of the
whole image.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegs.device.base import TILE_SIZE


@dataclass(frozen=True)
class Window:
    """A rectangle of pixels."""

    x0: int
    y0: int
    width: int
    height: int

    @property
    def there(self) -> tuple[slice, slice]:
        """Where it lies in the image: rows and columns."""
        return slice(self.y0, self.y0 + self.height), slice(self.x0, self.x0 + self.width)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles down and across."""
        return -(-self.height // TILE_SIZE), -(-self.width // TILE_SIZE)

    def halves(self) -> list[Window]:
        """Two windows, cut across the longer side; the window itself where it is a single tile."""
        down, across = self.tiles
        if max(down, across) == 1:
            return [self]
        cut = max(down, across) // 2 * TILE_SIZE
        if across >= down:
            rest = Window(self.x0 + cut, self.y0, self.width - cut, self.height)
            return [Window(self.x0, self.y0, cut, self.height), rest]
        rest = Window(self.x0, self.y0 + cut, self.width, self.height - cut)
        return [Window(self.x0, self.y0, self.width, cut), rest]
