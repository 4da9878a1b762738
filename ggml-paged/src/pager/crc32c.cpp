#include "pager/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
    #include <nmmintrin.h>
    #define KVP_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #include <sys/auxv.h>
    #define KVP_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace kvp {

namespace {

// Polynomials over two elements, modulo that of the checksum. The highest bit is the
// coefficient of x^0, as in the checksum itself.
constexpr uint32_t MODULUS = 0x82f63b78u;
constexpr uint32_t ONE     = 0x80000000u;

constexpr uint32_t times_x(uint32_t a) {
    return (a & 1) != 0 ? (a >> 1) ^ MODULUS : a >> 1;
}

// table[i][b] is the effect of byte b on the checksum when i more bytes follow.
using byte_tables = std::array<std::array<uint32_t, 256>, 8>;

byte_tables make_byte_tables() {
    byte_tables t{};
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t a = b;
        for (int bit = 0; bit < 8; bit++) {
            a = times_x(a);
        }
        t[0][b] = a;
    }
    for (size_t i = 1; i < t.size(); i++) {
        for (uint32_t b = 0; b < 256; b++) {
            t[i][b] = t[0][t[i - 1][b] & 0xff] ^ (t[i - 1][b] >> 8);
        }
    }
    return t;
}

uint32_t by_tables(const byte_tables & t, uint32_t state, const uint8_t * at, size_t bytes) {
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint32_t next = 0;
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t of_state = i < 4 ? state >> (8 * i) & 0xff : 0;
            next ^= t[7 - i][at[i] ^ of_state];
        }
        state = next;
    }
    for (; bytes > 0; at++, bytes--) {
        state = t[0][(state ^ *at) & 0xff] ^ (state >> 8);
    }
    return state;
}

#ifdef KVP_CRC_TARGET

uint32_t times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = ONE; bit != 0; bit >>= 1, b = times_x(b)) {
        product ^= (a & bit) != 0 ? b : 0;
    }
    return product;
}

// x to the power of 8 * bytes: the factor of as many bytes of zeros on the checksum.
uint32_t power_of_bytes(size_t bytes) {
    uint32_t result = ONE, square = ONE >> 8;
    for (; bytes != 0; bytes >>= 1, square = times(square, square)) {
        result = (bytes & 1) != 0 ? times(result, square) : result;
    }
    return result;
}

// The instruction takes three cycles and a new one can start in each, so three stretches
// of the data, one lane each, are summed at a time and put together after: the sum of the
// first is moved past the bytes of the next.
class lanes {
  public:
    explicit lanes(size_t bytes_) : bytes(bytes_) {
        const uint32_t shift = power_of_bytes(bytes);
        for (uint32_t i = 0; i < 4; i++) {
            for (uint32_t b = 0; b < 256; b++) {
                past_[i][b] = times(b << (8 * i), shift);
            }
        }
    }
    uint32_t past(uint32_t state) const {
        return past_[0][state & 0xff] ^ past_[1][state >> 8 & 0xff] ^ past_[2][state >> 16 & 0xff] ^ past_[3][state >> 24];
    }

    const size_t bytes;

  private:
    uint32_t past_[4][256];
};

struct lane_widths {
    // Three of the wide ones are a block of 64 KiB less two words.
    lanes wide{21840}, narrow{512};
};

#if defined(__x86_64__)
bool has_instruction() {
    return __builtin_cpu_supports("sse4.2") != 0;
}

KVP_CRC_TARGET inline uint32_t word(uint32_t state, uint64_t x) {
    return uint32_t(_mm_crc32_u64(state, x));
}

KVP_CRC_TARGET inline uint32_t byte(uint32_t state, uint8_t x) {
    return _mm_crc32_u8(state, x);
}
#else
bool has_instruction() {
    constexpr unsigned long CRC32 = 1ul << 7;  // HWCAP_CRC32
    return (getauxval(AT_HWCAP) & CRC32) != 0;
}

// Written out, since arm_acle.h declares them only where the whole file is compiled for them.
KVP_CRC_TARGET inline uint32_t word(uint32_t state, uint64_t x) {
    uint32_t out;
    __asm__("crc32cx %w0, %w1, %x2" : "=r"(out) : "r"(state), "r"(x));
    return out;
}

KVP_CRC_TARGET inline uint32_t byte(uint32_t state, uint8_t x) {
    uint32_t out;
    __asm__("crc32cb %w0, %w1, %w2" : "=r"(out) : "r"(state), "r"(uint32_t(x)));
    return out;
}
#endif

inline uint64_t load_word(const uint8_t * at) {
    uint64_t x;
    std::memcpy(&x, at, sizeof x);
    return x;
}

KVP_CRC_TARGET uint32_t three_lanes(const lanes & l, uint32_t state, const uint8_t * at) {
    const uint8_t * second = at + l.bytes;
    const uint8_t * third  = second + l.bytes;
    uint32_t a = state, b = 0, c = 0;
    for (size_t i = 0; i < l.bytes; i += 8) {
        a = word(a, load_word(at + i));
        b = word(b, load_word(second + i));
        c = word(c, load_word(third + i));
    }
    return l.past(l.past(a) ^ b) ^ c;
}

KVP_CRC_TARGET uint32_t by_instruction(uint32_t state, const uint8_t * at, size_t bytes) {
    static const lane_widths widths;
    for (const lanes * l : {&widths.wide, &widths.narrow}) {
        for (; bytes >= 3 * l->bytes; at += 3 * l->bytes, bytes -= 3 * l->bytes) {
            state = three_lanes(*l, state, at);
        }
    }
    for (; bytes >= 8; at += 8, bytes -= 8) {
        state = word(state, load_word(at));
    }
    for (; bytes > 0; at++, bytes--) {
        state = byte(state, *at);
    }
    return state;
}

#endif  // KVP_CRC_TARGET

}  // namespace

uint32_t crc32c_portable(const void * data, size_t bytes, uint32_t before) {
    static const byte_tables tables = make_byte_tables();
    return ~by_tables(tables, ~before, static_cast<const uint8_t *>(data), bytes);
}

uint32_t crc32c(const void * data, size_t bytes, uint32_t before) {
#ifdef KVP_CRC_TARGET
    static const bool instruction = has_instruction();
    if (instruction) {
        return ~by_instruction(~before, static_cast<const uint8_t *>(data), bytes);
    }
#endif
    return crc32c_portable(data, bytes, before);
}

}  // namespace kvp
