// What a record looks like in memory and on disk; see docs/formats.md. Shared with Python by value (ctypes).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidegs::store {

constexpr int kPlanes = 9;
constexpr int kRecordPlanes = 7;  // the rest are scratch
constexpr size_t kPage = 4096;
constexpr uint8_t kSeedKind = 0;

enum Dtype : uint16_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };

// Where planes lie in a slot, and the rule by which seeds become Gaussians.
struct Layout {
    int64_t offset[kPlanes];
    int64_t nbytes[kPlanes];  // padded to pages; 0: the layout lacks the plane
    int64_t stored[kPlanes];  // bytes of the plane in a record, padded to pages
    int64_t components[kPlanes];
    int64_t capacity;
    float seed_opacity;  // logit
    float seed_sh0[256];  // by colour value
    uint16_t dtype;  // of narrowed planes: one of Dtype
    uint16_t narrowed;  // bit of each plane that is stored in 16 bits a value
};

// One record to read or write. `slot` is a slot in memory, or the packed payload of seeds (written, or read kPacked);
// with kHeader, the payload is moved by somebody else: it is not looked at, and `crc` is what it is known to have.
struct Request {
    uint8_t* slot;
    int64_t offset;  // of the record in its file
    int32_t fd;
    int32_t status;  // out: 0, an errno, or one of Status
    uint32_t block;
    uint32_t generation;
    int32_t count;
    uint32_t crc;  // write: out; read: what it must be
    uint16_t planes;
    uint8_t kind;
    uint8_t scratch;  // 1: the slot holds scratch planes too
    uint32_t part;  // one of Part
};

enum Part : uint32_t {
    kWhole = 0,
    kPacked = 1,  // seeds are read as they are stored
    kHeader = 2,  // only the header page is moved
};

enum Status : int32_t {
    kEndOfFile = -1,
    kBadMagic = -2,
    kBadHeader = -3,
    kWrongRecord = -4,
    kBadPayload = -5,
};

// The first page of a record; the rest of the page is zero.
struct Header {
    char magic[8];
    uint32_t version;
    uint32_t block;
    uint32_t generation;
    uint16_t planes;
    uint8_t kind;
    uint8_t reserved0;
    uint32_t count;
    uint32_t crc;  // of the payload
    uint64_t payload_nbytes;
    uint32_t reserved[5];
    uint32_t header_crc;  // of the bytes before it
};
static_assert(sizeof(Header) == 64 && sizeof(Request) == 48);

inline size_t seed_nbytes(const Layout& layout) { return (19 * layout.capacity + kPage - 1) / kPage * kPage; }

size_t payload_nbytes(const Layout& layout, const Request& r);
void fill_header(const Layout& layout, const Request& r, uint8_t* page);
int32_t check_header(const Layout& layout, const Request& r, const uint8_t* page);

// Bits of those planes of the request that hold anything but zero bytes in the slot.
uint16_t nonzero_planes(const Layout& layout, const Request& r);
// Zeroes the planes of the slot that the record lacks.
void zero_missing(const Layout& layout, const Request& r);
// Expands seeds (xyz [3][C] and log scale [C] float32, rgb [3][C] uint8) into the slot's base plane.
void expand_seeds(const Layout& layout, const Request& r, const uint8_t* seeds);

}  // namespace tidegs::store
