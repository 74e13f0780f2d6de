// CRC32C (Castagnoli, RFC 3720 appendix B.4): reflected polynomial 0x82F63B78, initial and final xor of all ones.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidegs::store {

// Continues `crc` (0 to begin with) over n bytes; crc32c(crc32c(0, a), b) is the CRC of a followed by b.
uint32_t crc32c(uint32_t crc, const void* data, size_t n);

// The same without hardware.
uint32_t crc32c_software(uint32_t crc, const void* data, size_t n);

// The name of the implementation that this machine runs: "sse4.2", "arm-crc" or "software".
const char* crc32c_name();

}  // namespace tidegs::store
