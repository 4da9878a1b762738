// A visit of a list of pages of one layer.
#pragma once

#include "pager/state.h"

namespace kvp {

enum class visit : uint8_t {
    todo,
    asked,  // the scan has requested the read
    ready,  // found in a frame, in the queue `ready` (it may have left the frame since)
    taken,  // unordered: parts are or were handed out; ordered: pinned
    done,   // ordered: released by all
};

}  // namespace kvp

struct kvp_scan {
    kvp_pager      & p;
    const uint32_t   layer;
    const uint32_t * pages;
    const uint32_t   n, consumers, parts;

    std::vector<kvp::visit> state;   // by index
    std::vector<uint8_t>    missed;  // by index: was not in a frame at the first look
    std::vector<uint32_t>   left;    // ordered, by index: consumers that have yet to release
    std::vector<std::pair<uint32_t, uint32_t>> sorted;  // (page, index), where pages do not ascend

    uint32_t cursor = 0;  // indexes below are not todo, except those in `again`
    std::deque<uint32_t> again, asked, ready;

    // Unordered.
    uint32_t open      = 0;          // indexes that no thread has taken
    uint32_t current   = kvp::NONE;  // index whose parts are being handed out
    uint32_t next_part = 0;
    uint32_t demand    = kvp::NONE;  // index that threads without a ready page wait for
    uint32_t claimers  = 0;          // number of waiting threads

    // The position of reading ahead in the following layers.
    uint32_t ahead_layer = kvp::NONE, ahead_at = 0, ahead_hops = 0;

    std::condition_variable cv;

    kvp_scan(kvp_pager & pager, uint32_t layer_, const uint32_t * pages_, uint32_t n_, uint32_t consumers_, uint32_t parts_)
        : p(pager), layer(layer_), pages(pages_), n(n_), consumers(consumers_), parts(parts_) {}

    bool ordered() const { return consumers > 0; }
    kvp::page_id id(uint32_t index) const { return {layer, pages[index]}; }
    kvp::page_entry & entry(uint32_t index) const { return p.at(id(index)); }
};

namespace kvp {

// next_todo is the next index to read, NONE at the end; take_todo removes it.
uint32_t next_todo(kvp_scan & s);
void     take_todo(kvp_scan & s);
void     pump(kvp_scan & s);

}  // namespace kvp
