// Rows of values become columns.
#pragma once

#include <cstdint>

namespace tidegs::store {

// Value k of row i, counted from its byte `at`, goes to column[k][i].
void to_columns(const uint8_t* const* row, int64_t n, int64_t at, float* const* column, int64_t components);
void to_columns(const uint8_t* const* row, int64_t n, int64_t at, uint8_t* const* column, int64_t components);

}  // namespace tidegs::store
