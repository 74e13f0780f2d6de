// Planes stored in 16 bits a value; docs/formats.md states their form and error.
// Invariant: a value that is not zero does not become zero, so that no second moment vanishes under its first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/record.hpp"

namespace tidegs::store {

inline bool is_narrowed(const Layout& layout, int plane) { return layout.narrowed >> plane & 1; }

// The stored form of a plane of a slot; `out` takes layout.stored[plane] bytes.
void narrow_plane(const Layout& layout, int plane, const uint8_t* slot, uint8_t* out);
// The plane of a slot from its stored form.
void widen_plane(const Layout& layout, int plane, const uint8_t* stored, uint8_t* slot);

}  // namespace tidegs::store
