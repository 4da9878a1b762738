// A device that carries out operations late, in any order that streams and events allow.
//
// A thread takes one step of a random stream at a time: a copy and a launch are two steps
// each, so that the device notices forbidden overlaps. The thread runs eagerly, at random,
// or (lazy) only while another thread waits for it, and then prefers either stream or
// none, by seed.
//
// Violations it looks for: a copy into a slot that is being read, or whose page no kernel
// has read; a launch from a slot whose copy is not complete or is of another page; a copy
// from a frame that is not pinned; work under way at the end.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fake_source.h"

class fake_device {
public:
    enum class pace { eager, random, lazy };
    struct options {
        uint64_t seed  = 0;
        pace     when  = pace::random;
        int      fail_at = -1;           // the call with this number fails
        bool     drop_copy_waits    = false;  // broken devices, to show that it is noticed
        bool     drop_compute_waits = false;
        bool     drop_syncs         = false;
    };
    fake_device(const attention_case & c, watched_frames & s, const options & o);
    ~fake_device();

    kvp_device device();

    std::vector<std::string> violations();
    std::vector<float>       out();
    int                      calls();
    std::multiset<uint32_t>  attended();  // pages, hot and streamed
    uint32_t                 host_merges();

private:
    enum class kind { copy, record, wait, hot, slot, merge, finish };
    struct work {
        explicit work(kind k) : what(k) {}
        kind                      what;
        uint32_t                  slot = 0;
        size_t                    offset = 0, bytes = 0;
        const void *              src   = nullptr;
        uint32_t                  event = 0;
        uint64_t                  count = 0;  // of a wait: records that must be done
        std::vector<kvp_page_ref> pages;
        kvp_partial               host{};
        bool                      begun = false;
    };
    struct staging {
        std::vector<uint8_t> bytes;
        int64_t page    = -1;
        bool    writing = false, reading = false, read = true;
        size_t  missing = 0;  // bytes that the page still lacks
    };
    struct event {
        uint64_t recorded = 0, done = 0;
    };

    static fake_device * self(void * ctx) { return static_cast<fake_device *>(ctx); }
    static void fill(kvp_device * d);
    int  call();
    int  begin(uint32_t slots, size_t bytes, uint32_t events);
    void end();
    int  enqueue(kvp_stream stream, work w);
    int  sync(uint32_t e);
    int  drain();
    void wait_empty(std::unique_lock<std::mutex> & lock);

    void engine();
    int  ready_stream();
    bool ready(int stream) const;
    void step(int stream);
    void step_copy(work & w);
    void step_slot(work & w);
    void attend(const kvp_page_ref & ref, const uint8_t * page);
    void violation(std::string text) { violations_.push_back(std::move(text)); }

    const attention_case &  case_;
    watched_frames &        source_;
    const options           options_;
    std::mutex              mutex_;
    std::condition_variable changed_;
    std::mt19937_64         rng_;
    std::deque<work>        streams_[2];
    std::vector<event>      events_;
    std::vector<staging>    slots_;
    std::vector<float>      state_, scratch_;
    std::vector<float>      out_;
    std::multiset<uint32_t> attended_;
    std::vector<std::string> violations_;
    uint32_t                merges_  = 0;
    uint32_t                waiting_ = 0;
    uint64_t                credit_  = 0;
    int                     calls_   = 0;
    bool                    open_ = false, failed_ = false, quit_ = false;
    std::thread             thread_;
};
