// Random histories against a plain array.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>

#include "rig.h"

namespace {

// Contents of every cell, as halves, with turns applied at once. Turns are quarter turns of
// pairs, which are exact in f16.
struct model {
    uint32_t dk, dv, heads, cells;
    std::vector<std::vector<uint16_t>> k, v;  // [layer][cell * heads * d + i]

    model(const rig::options & o) : dk(o.dk), dv(o.dv), heads(o.kv_heads), cells(o.n_cells),
        k(o.layers, std::vector<uint16_t>(size_t(cells) * heads * dk)),
        v(o.layers, std::vector<uint16_t>(size_t(cells) * heads * dv)) {}

    void turn(uint32_t layer, uint32_t cell, const std::vector<kvp_plane> & planes) {
        for (uint32_t h = 0; h < heads; h++) {
            uint16_t * x = &k[layer][(size_t(cell) * heads + h) * dk];
            for (const kvp_plane & p : planes) {
                // A quarter turn: (a, b) becomes (-b, a), and zeros keep their sign.
                const uint16_t a = x[p.a], b = x[p.b];
                x[p.a] = b == 0 ? b : uint16_t(b ^ 0x8000);
                x[p.b] = a;
            }
        }
    }
};

bool same_halves(const uint16_t * a, const uint16_t * b, size_t n) {
    return std::equal(a, a + n, b);
}

class history {
  public:
    history(const rig::options & o, uint32_t seed) : p_(o), m_(o), rng_(seed) {}
    ~history() {
        for (int fd : fds_) {
            close(fd);
        }
    }

    void step() {
        switch (below(10)) {
            case 0: case 1: case 2: write(); break;
            case 3: case 4: read(); break;
            case 5: drop(); break;
            case 6: rotate(); break;
            case 7: back(); break;
            case 8: scan(); break;
            default:
                ASSERT_EQ(0, kvp_reserve(p_, below(2), below(p_.pages() + 1))) << kvp_last_error();
        }
    }

    void check_all() {
        for (uint32_t l = 0; l < p_.opt().layers; l++) {
            std::vector<uint32_t> cells(m_.cells);
            for (uint32_t c = 0; c < m_.cells; c++) {
                cells[c] = c;
            }
            check(l, cells);
        }
        EXPECT_EQ(0, kvp_pager_error(p_, nullptr));
    }

    const rig::pager & pager() const { return p_; }

  private:
    uint32_t below(uint32_t n) { return uint32_t(rng_() % n); }
    uint32_t any_layer() { return below(p_.opt().layers); }

    uint16_t value() {
        return uint16_t((below(2) << 15) | ((1 + below(29)) << 10) | below(1024));  // normal halves
    }

    std::vector<uint32_t> some_cells() {
        std::vector<uint32_t> cells;
        uint32_t c = below(m_.cells);
        for (uint32_t n = 1 + below(40); n > 0; n--) {
            cells.push_back(c);
            c = below(4) == 0 ? below(m_.cells) : (c + 1) % m_.cells;
        }
        return cells;
    }

    void write() {
        const uint32_t l = any_layer();
        const auto cells = some_cells();
        const size_t ek = m_.heads * m_.dk, ev = m_.heads * m_.dv;
        std::vector<uint16_t> k(cells.size() * ek), v(cells.size() * ev);
        std::generate(k.begin(), k.end(), [this] { return value(); });
        std::generate(v.begin(), v.end(), [this] { return value(); });
        const uint32_t sides = 1 + below(3);
        ASSERT_EQ(0, kvp_rows_write(p_, l, cells.data(), uint32_t(cells.size()), sides & 1 ? k.data() : nullptr,
                                    sides & 2 ? v.data() : nullptr)) << kvp_last_error();
        for (size_t i = 0; i < cells.size(); i++) {
            if (sides & 1) {
                std::copy_n(&k[i * ek], ek, &m_.k[l][cells[i] * ek]);
            }
            if (sides & 2) {
                std::copy_n(&v[i * ev], ev, &m_.v[l][cells[i] * ev]);
            }
        }
    }

    void check(uint32_t l, const std::vector<uint32_t> & cells) {
        const size_t ek = m_.heads * m_.dk, ev = m_.heads * m_.dv;
        std::vector<uint16_t> k(cells.size() * ek), v(cells.size() * ev);
        ASSERT_EQ(0, kvp_rows_read(p_, l, cells.data(), uint32_t(cells.size()), k.data(), v.data())) << kvp_last_error();
        for (size_t i = 0; i < cells.size(); i++) {
            ASSERT_TRUE(same_halves(&k[i * ek], &m_.k[l][cells[i] * ek], ek)) << "K of cell " << cells[i] << " of layer " << l;
            ASSERT_TRUE(same_halves(&v[i * ev], &m_.v[l][cells[i] * ev], ev)) << "V of cell " << cells[i] << " of layer " << l;
        }
    }

    void read() { check(any_layer(), some_cells()); }

    uint32_t cells_of(uint32_t page) const {
        return std::min(p_.opt().page_cells, m_.cells - page * p_.opt().page_cells);
    }

    void drop() {
        const uint32_t group = below(p_.opt().groups), page = below(p_.pages());
        kvp_drop(p_, group, page);
        const size_t ek = m_.heads * m_.dk, ev = m_.heads * m_.dv, c = page * p_.opt().page_cells;
        for (uint32_t l = group; l < p_.opt().layers; l += p_.opt().groups) {
            std::fill_n(m_.k[l].begin() + long(c * ek), cells_of(page) * ek, uint16_t(0));
            std::fill_n(m_.v[l].begin() + long(c * ev), cells_of(page) * ev, uint16_t(0));
        }
    }

    void rotate() {
        const uint32_t l = any_layer(), page = below(p_.pages());
        std::vector<kvp_plane> planes;
        for (uint32_t i = below(3); i < m_.dk / 2; i += 1 + below(3)) {
            planes.push_back({uint16_t(i), uint16_t(i + m_.dk / 2), {0, -1, 1, 0}});
        }
        std::vector<uint64_t> bits((p_.opt().page_cells + 63) / 64, ~uint64_t(0));
        if (below(2) != 0) {
            std::generate(bits.begin(), bits.end(), [this] { return uint64_t(rng_()) << 32 | rng_(); });
        }
        ASSERT_EQ(0, kvp_rotate(p_, l, page, bits.data(), planes.data(), uint32_t(planes.size()))) << kvp_last_error();
        for (uint32_t c = 0; c < cells_of(page); c++) {
            if (bits[c / 64] >> (c % 64) & 1) {
                m_.turn(l, page * p_.opt().page_cells + c, planes);
            }
        }
    }

    // Saves a page's content to a file and calls kvp_back; sometimes the page is dropped
    // first, so that only the file has the content.
    void back() {
        const uint32_t l = any_layer(), page = below(p_.pages());
        const size_t ek = m_.heads * m_.dk, ev = m_.heads * m_.dv, c = page * p_.opt().page_cells;
        const auto k = std::vector<uint16_t>(m_.k[l].begin() + long(c * ek), m_.k[l].begin() + long((c + cells_of(page)) * ek));
        const auto v = std::vector<uint16_t>(m_.v[l].begin() + long(c * ev), m_.v[l].begin() + long((c + cells_of(page)) * ev));
        if (below(2) == 0) {
            for (uint32_t other = l % p_.opt().groups; other < p_.opt().layers; other += p_.opt().groups) {
                if (other != l) {
                    std::fill_n(m_.k[other].begin() + long(c * ek), cells_of(page) * ek, uint16_t(0));
                    std::fill_n(m_.v[other].begin() + long(c * ev), cells_of(page) * ev, uint16_t(0));
                }
            }
            kvp_drop(p_, l % p_.opt().groups, page);
        }
        if (fds_.empty() || below(8) == 0) {
            std::string name = std::string(rig::disk()) + "/kvp_extent_XXXXXX";
            fds_.push_back(mkstemp(&name[0]));
            ASSERT_LE(0, fds_.back());
            unlink(name.c_str());
            end_ = 0;
        }
        std::vector<kvp_extent> extents;
        for (uint32_t first = 0; first < cells_of(page);) {
            const uint32_t n = std::min(cells_of(page) - first, 1 + below(p_.opt().page_cells));
            kvp_extent x{fds_.back(), first, n, 0, 0};
            x.k_offset = put(&k[first * ek], n * ek * 2);
            x.v_offset = put(&v[first * ev], n * ev * 2);
            extents.push_back(x);
            first += n;
        }
        std::shuffle(extents.begin(), extents.end(), rng_);
        ASSERT_EQ(0, kvp_back(p_, l, page, extents.data(), uint32_t(extents.size()))) << kvp_last_error();
    }

    uint64_t put(const uint16_t * data, size_t bytes) {
        uint64_t at = end_ + below(3) * 100;
        at = below(2) == 0 ? (at + 4095) / 4096 * 4096 : at;
        EXPECT_EQ(ssize_t(bytes), pwrite(fds_.back(), data, bytes, off_t(at)));
        end_ = at + bytes;
        return at;
    }

    void scan() {
        const uint32_t l = any_layer();
        std::vector<uint32_t> list;
        for (uint32_t page = 0; page < p_.pages(); page++) {
            if (below(3) != 0) {
                list.push_back(page);
            }
        }
        const size_t ek = m_.heads * m_.dk, ev = m_.heads * m_.dv;
        uint32_t visits = 0;
        ASSERT_EQ(0, p_.scan(l, list, [&](uint32_t page, const kvp_page & at) {
            const size_t c = page * p_.opt().page_cells;
            visits++;
            EXPECT_TRUE(same_halves(reinterpret_cast<uint16_t *>(at.k), &m_.k[l][c * ek], cells_of(page) * ek)) << page;
            EXPECT_TRUE(same_halves(reinterpret_cast<uint16_t *>(at.v), &m_.v[l][c * ev], cells_of(page) * ev)) << page;
        })) << kvp_last_error();
        EXPECT_EQ(list.size(), visits);
    }

    rig::pager   p_;
    model        m_;
    std::mt19937 rng_;
    std::vector<int> fds_;
    uint64_t     end_ = 0;
};

class History : public testing::TestWithParam<uint32_t> {};

TEST_P(History, MatchesAPlainArray) {
    for (uint32_t seed = 1; seed <= 8; seed++) {
        rig::options o;
        o.frames     = GetParam();
        o.layers     = 3;
        o.groups     = 2;
        o.page_cells = seed > 6 ? 1024 : seed % 2 ? 16 : 128;
        o.n_cells    = seed > 6 ? 1024 * 5 - 7 : seed % 2 ? 16 * 9 + 5 : 128 * 7;
        o.kv_heads   = 1 + seed % 3;
        o.dk         = 10 + 2 * seed;
        o.dv         = 7;
        o.direct     = int(seed / 2 % 2);
        o.io_threads = 1 + seed % 3;
        SCOPED_TRACE("seed " + std::to_string(seed));
        history h(o, seed);
        const int steps = seed > 6 ? 200 : 600;  // those of large pages are slow
        for (int i = 0; i < steps && !testing::Test::HasFailure(); i++) {
            SCOPED_TRACE("step " + std::to_string(i));
            h.step();
        }
        h.check_all();
        if (testing::Test::HasFailure()) {
            return;
        }
        EXPECT_GT(h.pager().stats().extent_bytes, 0u);
        EXPECT_GT(h.pager().stats().rotations, 0u);
    }
}

INSTANTIATE_TEST_SUITE_P(Budgets, History, testing::Values(1u, 2u, 5u, 12u));

}  // namespace
