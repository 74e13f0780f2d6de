// The I/O engine: reads and writes batches of records with several requests in flight.
// Invariant: a record whose status is 0 was transferred whole, and on reads its header and checksum were right.
// Records that touch each other in a file travel in one request; planes are scattered straight into the slots.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "store/crc32c.hpp"
#include "store/narrow.hpp"
#include "store/pool.hpp"
#include "store/record.hpp"

namespace tidegs::store {
namespace {

using Transfer = ssize_t (*)(int, const struct iovec*, int, off_t);

constexpr size_t kRunBytes = 4 << 20;
constexpr size_t kRunRecords = 64;  // at most 10 segments each: under IOV_MAX

ssize_t sys_preadv(int fd, const struct iovec* iov, int n, off_t at) { return ::preadv(fd, iov, n, at); }
ssize_t sys_pwritev(int fd, const struct iovec* iov, int n, off_t at) { return ::pwritev(fd, iov, n, at); }

struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<uint8_t, Free>;

// Pages of this thread's own, kept between calls: fresh memory is slow to touch first. nullptr where there is none.
uint8_t* thread_pages(size_t n) {
    thread_local Buffer buffer;
    thread_local size_t size = 0;
    if (n > size) {
        buffer.reset(static_cast<uint8_t*>(std::aligned_alloc(kPage, n)));
        size = buffer ? n : 0;
    }
    return buffer.get();
}

// Moves the whole range, however short the single transfers are; returns 0, an errno or kEndOfFile.
int32_t transfer_all(Transfer call, int fd, std::vector<struct iovec>& iov, off_t at, size_t left) {
    size_t first = 0;
    while (left) {
        const ssize_t got = call(fd, iov.data() + first, static_cast<int>(iov.size() - first), at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno ? errno : EIO;
        if (got == 0) return kEndOfFile;
        at += got;
        left -= got;
        size_t skip = got;
        while (skip && skip >= iov[first].iov_len) skip -= iov[first++].iov_len;
        if (skip) {
            iov[first].iov_base = static_cast<uint8_t*>(iov[first].iov_base) + skip;
            iov[first].iov_len -= skip;
        }
    }
    return 0;
}

void append(std::vector<struct iovec>& iov, uint8_t* p, size_t n) {
    if (!iov.empty() && static_cast<uint8_t*>(iov.back().iov_base) + iov.back().iov_len == p)
        iov.back().iov_len += n;
    else
        iov.push_back({p, n});
}

}  // namespace

class Engine {
   public:
    Engine(const Layout& layout, int threads, Transfer read, Transfer write)
        : layout_(layout), read_(read ? read : sys_preadv), write_(write ? write : sys_pwritev), pool_(threads) {}

    int64_t read(Request* r, size_t n) {
        return batch(r, n, [&](Request** run, size_t m) { read_run(run, m); });
    }
    int64_t write(Request* r, size_t n) {
        return batch(r, n, [&](Request** run, size_t m) { write_run(run, m); });
    }
    void scan(Request* r, size_t n) {
        pool_.run(n, [&](size_t i) { r[i].planes = nonzero_planes(layout_, r[i]); });
    }

   private:
    size_t moved_nbytes(const Request& r) const {
        return kPage + (r.part == kHeader ? 0 : payload_nbytes(layout_, r));
    }

    // Sorts the records by place, cuts them into runs of touching ones, and works on the runs; returns the failures.
    int64_t batch(Request* r, size_t n, const std::function<void(Request**, size_t)>& work) {
        std::vector<Request*> order(n);
        for (size_t i = 0; i < n; ++i) order[i] = r + i;
        std::sort(order.begin(), order.end(), [](const Request* a, const Request* b) {
            return a->fd != b->fd ? a->fd < b->fd : a->offset < b->offset;
        });
        std::vector<size_t> starts;
        size_t bytes = 0;
        for (size_t i = 0; i < n; ++i) {
            const size_t size = moved_nbytes(*order[i]);
            const bool touches =
                i && order[i]->fd == order[i - 1]->fd &&
                order[i]->offset == order[i - 1]->offset + static_cast<int64_t>(moved_nbytes(*order[i - 1]));
            if (!touches || bytes + size > kRunBytes || i - starts.back() == kRunRecords) {
                starts.push_back(i);
                bytes = 0;
            }
            bytes += size;
        }
        starts.push_back(n);
        pool_.run(starts.size() - 1, [&](size_t k) { work(&order[starts[k]], starts[k + 1] - starts[k]); });
        return std::count_if(r, r + n, [](const Request& q) { return q.status != 0; });
    }

    // Bytes of the payload that pass through the thread's own pages: seeds to be expanded, narrowed planes.
    size_t staged_nbytes(const Request& r, bool reading) const {
        if (r.part == kHeader) return 0;
        if (r.kind == kSeedKind) return reading && r.part == kWhole ? seed_nbytes(layout_) : 0;
        size_t n = 0;
        for (int k = 0; k < kPlanes; ++k)
            if ((r.planes >> k & 1) && is_narrowed(layout_, k)) n += layout_.stored[k];
        return n;
    }

    // Lays out a run: a header page each (of the thread's own), what is staged behind it, and the planes. False where
    // memory is short.
    bool segments(Request** run, size_t n, bool reading, std::vector<struct iovec>& iov, std::vector<uint8_t*>& at,
                  size_t* total) {
        size_t need = 0;
        for (size_t i = 0; i < n; ++i) need += kPage + staged_nbytes(*run[i], reading);
        uint8_t* p = thread_pages(need);
        if (!p) return false;
        *total = 0;
        for (size_t i = 0; i < n; ++i) {
            const Request& r = *run[i];
            at.push_back(p);
            append(iov, p, kPage);
            p += kPage;
            *total += moved_nbytes(r);
            if (r.part == kHeader) continue;
            if (r.kind == kSeedKind) {
                const size_t staged = staged_nbytes(r, reading);
                append(iov, staged ? p : r.slot, seed_nbytes(layout_));
                p += staged;
                continue;
            }
            for (int k = 0; k < kPlanes; ++k) {
                if (!(r.planes >> k & 1)) continue;
                if (!is_narrowed(layout_, k)) {
                    append(iov, r.slot + layout_.offset[k], layout_.nbytes[k]);
                    continue;
                }
                if (!reading) narrow_plane(layout_, k, r.slot, p);
                append(iov, p, layout_.stored[k]);
                p += layout_.stored[k];
            }
        }
        return true;
    }

    // `staged`: seeds, or the narrowed planes one after the other.
    uint32_t payload_crc(const Request& r, const uint8_t* staged) const {
        if (r.kind == kSeedKind) return crc32c(0, staged, seed_nbytes(layout_));
        uint32_t crc = 0;
        for (int k = 0; k < kPlanes; ++k) {
            if (!(r.planes >> k & 1)) continue;
            const bool narrowed = is_narrowed(layout_, k);
            crc = crc32c(crc, narrowed ? staged : r.slot + layout_.offset[k], layout_.stored[k]);
            if (narrowed) staged += layout_.stored[k];
        }
        return crc;
    }

    void widen(const Request& r, const uint8_t* staged) const {
        for (int k = 0; k < kPlanes; ++k) {
            if (!(r.planes >> k & 1) || !is_narrowed(layout_, k)) continue;
            widen_plane(layout_, k, staged, r.slot);
            staged += layout_.stored[k];
        }
    }

    static void fail(Request** run, size_t n, int32_t status) {
        for (size_t i = 0; i < n; ++i) run[i]->status = status;
    }

    void read_run(Request** run, size_t n) {
        std::vector<struct iovec> iov;
        std::vector<uint8_t*> pages;
        size_t total;
        if (!segments(run, n, true, iov, pages, &total)) return fail(run, n, ENOMEM);
        const int32_t status = transfer_all(read_, run[0]->fd, iov, run[0]->offset, total);
        if (status) return fail(run, n, status);
        for (size_t i = 0; i < n; ++i) {
            Request& r = *run[i];
            const uint8_t* staged = r.part == kPacked ? r.slot : pages[i] + kPage;
            r.status = check_header(layout_, r, pages[i]);
            if (r.status || r.part == kHeader) continue;
            if (payload_crc(r, staged) != r.crc) {
                r.status = kBadPayload;
                continue;
            }
            if (r.kind != kSeedKind) {
                widen(r, staged);
                zero_missing(layout_, r);
            } else if (r.part == kWhole) {
                expand_seeds(layout_, r, staged);
            }
        }
    }

    void write_run(Request** run, size_t n) {
        std::vector<struct iovec> iov;
        std::vector<uint8_t*> pages;
        size_t total;
        if (!segments(run, n, false, iov, pages, &total)) return fail(run, n, ENOMEM);
        for (size_t i = 0; i < n; ++i) {
            Request& r = *run[i];
            if (r.part != kHeader) r.crc = payload_crc(r, r.kind == kSeedKind ? r.slot : pages[i] + kPage);
            fill_header(layout_, *run[i], pages[i]);
        }
        const int32_t status = transfer_all(write_, run[0]->fd, iov, run[0]->offset, total);
        fail(run, n, status == kEndOfFile ? EIO : status);  // a write that makes no progress
    }

    const Layout layout_;
    const Transfer read_, write_;
    Pool pool_;
};

}  // namespace tidegs::store

#define TIDEGS_API extern "C" __attribute__((visibility("default")))

using tidegs::store::Engine;

TIDEGS_API Engine* tidegs_store_engine_new(const tidegs::store::Layout* layout, int threads,
                                           ssize_t (*read)(int, const struct iovec*, int, off_t),
                                           ssize_t (*write)(int, const struct iovec*, int, off_t)) {
    try {
        return new Engine(*layout, threads, read, write);
    } catch (const std::exception&) {  // no thread could be started
        return nullptr;
    }
}

TIDEGS_API void tidegs_store_engine_free(Engine* engine) { delete engine; }

// Each returns the number of records whose status is not 0.
TIDEGS_API int64_t tidegs_store_read(Engine* engine, tidegs::store::Request* r, int64_t n) { return engine->read(r, n); }
TIDEGS_API int64_t tidegs_store_write(Engine* engine, tidegs::store::Request* r, int64_t n) {
    return engine->write(r, n);
}

// Leaves in `planes` of each request those planes that are not all zero in its slot.
TIDEGS_API void tidegs_store_scan(Engine* engine, tidegs::store::Request* r, int64_t n) { engine->scan(r, n); }

TIDEGS_API uint32_t tidegs_store_crc32c(uint32_t crc, const void* data, int64_t n) {
    return tidegs::store::crc32c(crc, data, n);
}
TIDEGS_API uint32_t tidegs_store_crc32c_software(uint32_t crc, const void* data, int64_t n) {
    return tidegs::store::crc32c_software(crc, data, n);
}
TIDEGS_API const char* tidegs_store_crc32c_name() { return tidegs::store::crc32c_name(); }
