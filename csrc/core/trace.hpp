// Who did what when: begin and end of each stage on each thread, kept only while someone asked for it.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace tidegs {

inline int64_t clock_ns(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}
// Monotonic nanoseconds, the clock of Python's time.perf_counter_ns.
inline int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

struct Event {
    const char* stage;  // a string literal
    int64_t thread, begin_ns, end_ns, cpu_ns;
};

struct Start {
    int64_t ns = 0, cpu_ns = 0;
};

class Trace {
public:
    static Trace& get() {
        static Trace* trace = new Trace;
        return *trace;
    }
    bool on() const { return on_.load(std::memory_order_relaxed); }
    // Starts or stops keeping events, forgetting those kept; called while no stage runs.
    void set(bool on, int threads) {
        on_.store(on, std::memory_order_relaxed);
        events_.assign(on ? threads : 0, {});
    }
    Start begin() const { return on() ? Start{now_ns(), clock_ns(CLOCK_THREAD_CPUTIME_ID)} : Start{}; }
    void end(const char* stage, int thread, Start start) {
        if (!start.ns || thread >= (int)events_.size()) return;
        const int64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - start.cpu_ns;
        events_[thread].push_back({stage, thread, start.ns, now_ns(), cpu});
    }
    // Moves up to `room` events to `out`; returns how many.
    int take(Event* out, int room) {
        int n = 0;
        for (auto& events : events_) {
            while (!events.empty() && n < room) {
                out[n++] = events.back();
                events.pop_back();
            }
        }
        return n;
    }

private:
    std::atomic<bool> on_{false};
    std::vector<std::vector<Event>> events_;
};

}  // namespace tidegs
