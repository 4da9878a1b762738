// Rotations of K rows, kept per page until the page is in a frame.
#include "pager/state.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "pager/pager.h"

namespace kvp {

static void apply_planes(float * x, const std::vector<kvp_plane> & planes) {
    for (const kvp_plane & r : planes) {
        const float a = x[r.a], b = x[r.b];
        x[r.a] = r.m[0] * a + r.m[1] * b;
        x[r.b] = r.m[2] * a + r.m[3] * b;
    }
}

static bool has_cell(const rotation & r, uint32_t cell) {
    return (r.cells[cell / 64] >> (cell % 64) & 1) != 0;
}

void apply_rotations(const layer_state & l, uint32_t page_cells, uint8_t * k, const std::vector<rotation> & list) {
    const size_t head = l.row_k / l.desc.kv_heads;
    std::vector<float> x(l.desc.dk);
    for (uint32_t c = 0; c < page_cells; c++) {
        if (std::none_of(list.begin(), list.end(), [c](const rotation & r) { return has_cell(r, c); })) {
            continue;
        }
        for (uint32_t h = 0; h < l.desc.kv_heads; h++) {
            uint8_t * row = k + c * l.row_k + h * head;
            kvp_dequantize_row(l.desc.type_k, row, x.data(), l.desc.dk);
            for (const rotation & r : list) {
                if (has_cell(r, c)) {
                    apply_planes(x.data(), *r.planes);
                }
            }
            kvp_quantize_row(l.desc.type_k, x.data(), row, l.desc.dk);
        }
    }
}

// A shift turns all pages by the same planes: they are kept once.
static std::shared_ptr<const std::vector<kvp_plane>> share_planes(kvp_pager & p, const kvp_plane * planes, uint32_t n) {
    const auto same = [](const kvp_plane & x, const kvp_plane & y) {
        return x.a == y.a && x.b == y.b && std::memcmp(x.m, y.m, sizeof x.m) == 0;
    };
    if (!p.last_planes || p.last_planes->size() != n || !std::equal(planes, planes + n, p.last_planes->begin(), same)) {
        p.last_planes = std::make_shared<const std::vector<kvp_plane>>(planes, planes + n);
    }
    return p.last_planes;
}

}  // namespace kvp

using namespace kvp;

int kvp_rotate(kvp_pager * pager, uint32_t layer, uint32_t page, const uint64_t * cells,
               const kvp_plane * planes, uint32_t n_planes) try {
    const int bad = check_page(pager, layer, page, "rotated");
    if (bad != 0) {
        return bad;
    }
    kvp_pager & p = *pager;
    const uint32_t dk = p.layers[layer]->desc.dk;
    for (uint32_t i = 0; i < n_planes; i++) {
        if (planes[i].a >= dk || planes[i].b >= dk || planes[i].a == planes[i].b) {
            return kvp_set_error(-EINVAL, "plane %u of a rotation is of elements %u and %u: two different elements below %u are needed",
                i, planes[i].a, planes[i].b, dk);
        }
    }
    const uint32_t words = (p.page_cells + 63) / 64;
    std::vector<uint64_t> bits(cells, cells + words);
    if (p.page_cells % 64 != 0) {
        bits[words - 1] &= (uint64_t(1) << p.page_cells % 64) - 1;
    }
    if (n_planes == 0 || std::all_of(bits.begin(), bits.end(), [](uint64_t b) { return b == 0; })) {
        return 0;
    }
    guard g(p);
    if (p.error.load() != 0) {
        return sticky(p);
    }
    const page_id id{layer, page};
    page_entry & e = p.at(id);
    const bool zeros = (e.state == page_state::absent || e.state == page_state::queued) && !has_content(e);
    if (e.dropping || zeros) {
        return 0;  // zeros stay zeros
    }
    if (!e.extra) {
        e.extra.reset(new page_extra);
    }
    e.extra->rotations.push_back({std::move(bits), share_planes(p, planes, n_planes)});
    e.changes++;
    advance(p, id);  // a thread may be waiting for the page
    return 0;
} catch (const std::bad_alloc &) {
    return kvp_set_error(-ENOMEM, "no memory to note the rotation of page %u of layer %u", page, layer);
}
