// Settings, layers, start and end of a pager.
#include "pager/state.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <system_error>

#include <pthread.h>
#include <signal.h>

#include "pager/pager.h"

using namespace kvp;

namespace {

constexpr uint32_t MAX_CELLS = 1u << 28;
constexpr uint32_t MAX_DIM   = 1u << 16;
constexpr uint64_t MAX_PAGE  = uint64_t(1) << 34;

// One thread leaves the disk idle while it checks the bytes it has read. On two CPUs that
// compute as well, three read pages of 8 MiB as fast as two and pages of 1 MiB 1.3 to 1.5
// times as fast; a fourth takes time from the computing threads.
constexpr uint32_t IO_THREADS = 3;

int check_config(const kvp_config * c) {
    if (c->page_cells < KVP_PAGE_CELLS_MIN || c->page_cells > KVP_PAGE_CELLS_MAX || (c->page_cells & (c->page_cells - 1)) != 0) {
        return kvp_set_error(-EINVAL, "page_cells is %u: a power of two from %u to %u is needed", c->page_cells,
            KVP_PAGE_CELLS_MIN, KVP_PAGE_CELLS_MAX);
    }
    if (c->ram_bytes == 0 || c->ram_bytes > uint64_t(1) << 46) {
        return kvp_set_error(-EINVAL, "ram_bytes is %llu: the memory for K/V pages must be from one page to 64 TiB",
            (unsigned long long) c->ram_bytes);
    }
    if (c->io_threads > 16) {
        return kvp_set_error(-EINVAL, "io_threads is %u: 1 to 16 are possible, 0 stands for %u", c->io_threads, IO_THREADS);
    }
    if ((c->arena_alloc == nullptr) != (c->arena_free == nullptr)) {
        return kvp_set_error(-EINVAL, "arena_alloc and arena_free must be given together");
    }
    if (c->spill_dir == nullptr && c->spill_bytes != 0) {
        return kvp_set_error(-EINVAL, "spill_bytes is %llu without a spill_dir to put them in", (unsigned long long) c->spill_bytes);
    }
    return 0;
}

int check_layer(const kvp_pager & p, const kvp_layer_desc & d) {
    if (d.group >= MAX_GROUPS) {
        return kvp_set_error(-EINVAL, "group is %u: 0 to %u are possible", d.group, MAX_GROUPS - 1);
    }
    if (d.n_cells == 0 || d.n_cells > MAX_CELLS) {
        return kvp_set_error(-EINVAL, "n_cells is %u: 1 to %u are possible", d.n_cells, MAX_CELLS);
    }
    if (d.kv_heads == 0 || d.kv_heads > MAX_DIM) {
        return kvp_set_error(-EINVAL, "kv_heads is %u: 1 to %u are possible", d.kv_heads, MAX_DIM);
    }
    if (!kvp_type_valid(d.type_k) || !kvp_type_valid(d.type_v)) {
        return kvp_set_error(-EINVAL, "%s is %d: f16 (1), q4_0 (2) and q8_0 (8) are possible",
            kvp_type_valid(d.type_k) ? "type_v" : "type_k", kvp_type_valid(d.type_k) ? d.type_v : d.type_k);
    }
    const bool k_bad = d.dk == 0 || d.dk > MAX_DIM || kvp_row_bytes(d.type_k, d.dk) == 0;
    const bool v_bad = d.dv == 0 || d.dv > MAX_DIM || kvp_row_bytes(d.type_v, d.dv) == 0;
    if (k_bad || v_bad) {
        return kvp_set_error(-EINVAL, "%s is %u: a number from 1 to %u that is a multiple of the block of %s is needed",
            k_bad ? "dk" : "dv", k_bad ? d.dk : d.dv, MAX_DIM, kvp_type_name(k_bad ? d.type_k : d.type_v));
    }
    for (const auto & l : p.layers) {
        if (l->desc.group == d.group && l->desc.n_cells != d.n_cells) {
            return kvp_set_error(-EINVAL, "n_cells is %u: the other layers of group %u have %u", d.n_cells, d.group, l->desc.n_cells);
        }
    }
    return 0;
}

// Versions of the pages of one pager; no process lives long enough to use them up.
constexpr uint64_t VERSIONS = uint64_t(1) << 40;

uint64_t take_versions() {
    static std::atomic<uint64_t> pagers{0};
    return ++pagers * VERSIONS;
}

size_t align_up(size_t n) {
    return (n + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN;
}

void stop_threads(kvp_pager & p) {
    {
        std::lock_guard<std::mutex> lock(p.mutex);
        p.stopping = true;
    }
    p.io_cv.notify_all();
    for (std::thread & t : p.threads) {
        t.join();
    }
    p.threads.clear();
}

// Signals go to the program's threads, not to the pager's.
void start_threads(kvp_pager & p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        for (uint32_t i = 0; i < p.io_threads; i++) {
            p.threads.emplace_back(worker_main, &p);
        }
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

int start(kvp_pager & p) {
    size_t largest = 0;
    for (const auto & l : p.layers) {
        largest = std::max(largest, l->page_bytes);
    }
    const uint64_t n = p.ram_bytes / largest;
    if (n == 0) {
        return kvp_set_error(-ENOMEM, "ram_bytes is %llu, and one page needs %zu: allow more memory or make pages smaller",
            (unsigned long long) p.ram_bytes, largest);
    }
    p.frame_bytes = largest;
    // More frames than pages would never be used.
    uint64_t pages = 0;
    for (const auto & l : p.layers) {
        pages += l->pages.size();
    }
    p.frames.resize(size_t(std::min<uint64_t>(std::min(n, pages), NONE - 1)));
    const int rc = map_arena(p, p.frames.size() * p.frame_bytes);
    if (rc != 0) {
        return rc;
    }
    p.returned.reserve(p.frames.size());
    p.free_frames.reserve(p.frames.size());
    for (size_t f = p.frames.size(); f-- > 0;) {
        p.frames[f].zero = p.config.arena_alloc == nullptr;
        p.free_frames.push_back(uint32_t(f));
    }
    start_threads(p);
    p.started = true;
    return 0;
}

}  // namespace

int kvp_pager_create(const kvp_config * config, kvp_pager ** out) {
    *out = nullptr;
    int rc = check_config(config);
    if (rc != 0) {
        return rc;
    }
    try {
        std::unique_ptr<kvp_pager> p(new kvp_pager);
        p->config     = *config;
        p->page_cells = config->page_cells;
        p->ram_bytes  = config->ram_bytes;
        p->io_threads = config->io_threads != 0 ? config->io_threads : IO_THREADS;
        p->direct     = config->direct != 0;
        p->first_version = take_versions();
        p->config.spill_dir = nullptr;  // the string is the caller's; the spill file has a copy
        if (config->spill_dir != nullptr) {
            rc = p->spill.open(config->spill_dir, p->direct, config->spill_bytes);
        }
        if (rc == 0) {
            *out = p.release();
        }
        return rc;
    } catch (const std::bad_alloc &) {
        return kvp_set_error(-ENOMEM, "no memory for a pager");
    }
}

void kvp_pager_free(kvp_pager * pager) {
    if (pager == nullptr) {
        return;
    }
    pager->attachment.reset();
    stop_threads(*pager);
    unmap_arena(*pager);
    delete pager;
}

int kvp_layer_add(kvp_pager * pager, const kvp_layer_desc * desc, uint32_t * layer) {
    if (pager->started) {
        return kvp_set_error(-EINVAL, "layers are added before the pager starts");
    }
    const int rc = check_layer(*pager, *desc);
    if (rc != 0) {
        return rc;
    }
    try {
        std::unique_ptr<layer_state> l(new layer_state);
        l->desc  = *desc;
        l->row_k = desc->kv_heads * kvp_row_bytes(desc->type_k, desc->dk);
        l->row_v = desc->kv_heads * kvp_row_bytes(desc->type_v, desc->dv);
        l->v_offset   = align_up(l->row_k * pager->page_cells);
        l->page_bytes = align_up(l->v_offset + l->row_v * pager->page_cells);
        if (l->page_bytes > MAX_PAGE) {
            return kvp_set_error(-EINVAL, "a page of %u cells of this layer has %zu MiB: make pages smaller", pager->page_cells,
                l->page_bytes >> 20);
        }
        l->pages.resize((size_t(desc->n_cells) + pager->page_cells - 1) / pager->page_cells);
        pager->layers.push_back(std::move(l));
    } catch (const std::bad_alloc &) {
        return kvp_set_error(-ENOMEM, "no memory for the table of a layer of %u cells", desc->n_cells);
    }
    *layer = uint32_t(pager->layers.size() - 1);
    return 0;
}

int kvp_pager_start(kvp_pager * pager) {
    if (pager->started || pager->layers.empty()) {
        return kvp_set_error(-EINVAL, pager->started ? "the pager has started already" : "a pager needs layers to start");
    }
    int rc;
    try {
        rc = start(*pager);
    } catch (const std::bad_alloc &) {
        rc = kvp_set_error(-ENOMEM, "no memory for the table of frames");
    } catch (const std::system_error & e) {
        rc = kvp_set_error(-EAGAIN, "the I/O threads cannot be started: %s", e.what());
    }
    if (rc != 0) {
        stop_threads(*pager);
        pager->stopping = false;
        unmap_arena(*pager);
        pager->frames.clear();
        pager->free_frames.clear();
    }
    return rc;
}

uint32_t kvp_page_cells(const kvp_pager * pager) {
    return pager->page_cells;
}

uint32_t kvp_pager_layers(const kvp_pager * pager) {
    return uint32_t(pager->layers.size());
}

const kvp_layer_desc * kvp_layer_get(const kvp_pager * pager, uint32_t layer) {
    return layer < pager->layers.size() ? &pager->layers[layer]->desc : nullptr;
}

size_t kvp_layer_row_k(const kvp_pager * pager, uint32_t layer) {
    return pager->layers[layer]->row_k;
}

size_t kvp_layer_row_v(const kvp_pager * pager, uint32_t layer) {
    return pager->layers[layer]->row_v;
}

size_t kvp_layer_v_offset(const kvp_pager * pager, uint32_t layer) {
    return pager->layers[layer]->v_offset;
}

size_t kvp_layer_page_bytes(const kvp_pager * pager, uint32_t layer) {
    return pager->layers[layer]->page_bytes;
}

uint32_t kvp_pager_frames(const kvp_pager * pager) {
    return uint32_t(pager->frames.size());
}
