// A source with few frames. A page is loaded when it is pinned, and its frame is poisoned
// when the last pin is gone, so that later reads give NaN.
#pragma once

#include <condition_variable>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "attention_case.h"

// What the fake device asks about host memory that it copies from.
class watched_frames {
public:
    virtual ~watched_frames() = default;
    // read copies from a frame if it is pinned, and says whether it is.
    virtual bool read(const void * src, size_t bytes, void * dst) = 0;
    // The pinned page that src is in, or -1.
    virtual int64_t page_at(const void * src) = 0;
};

class fake_source : public watched_frames {
public:
    struct options {
        uint32_t frames  = 4;
        uint64_t seed    = 0;
        bool     slow    = false;  // pins take a while, in turns of the scheduler
        int      fail_at = -1;     // the pin with this number fails
        bool     keep    = false;  // unpinned pages stay until the frame is needed
    };
    fake_source(const attention_case & c, const options & o);

    kvp::page_source source();

    bool    read(const void * src, size_t bytes, void * dst) override;
    int64_t page_at(const void * src) override;

    uint32_t pins_left();
    uint32_t pins() const { return pins_; }
    uint32_t most_pinned() const { return most_pinned_; }  // at the same time
    std::vector<std::string> violations();
    // Pages that were pinned, each once.
    std::multiset<uint32_t> pinned();
    std::set<uint32_t>      prefetched();

private:
    struct frame {
        int64_t              page = -1;
        uint32_t             pins = 0;
        std::vector<uint8_t> bytes;
    };
    int     pin(uint32_t page, kvp_page * out);
    void    unpin(uint32_t page);
    void    prefetch(const uint32_t * pages, uint32_t n);
    frame * find(int64_t page);
    frame * unpinned();
    frame * at(const void * src, size_t bytes);
    void    load(frame * f, uint32_t page);

    const attention_case &   case_;
    const options            options_;
    std::mutex               mutex_;
    std::condition_variable  changed_;
    std::mt19937_64          rng_;
    std::vector<frame>       frames_;
    std::multiset<uint32_t>  pinned_;
    std::set<uint32_t>       prefetched_;
    std::vector<std::string> violations_;
    uint32_t                 pins_ = 0, pinned_now_ = 0, most_pinned_ = 0;
};
