#include "kv_types.h"

#include "types/rows.h"

using namespace kvp;

int kvp_type_valid(int type) {
    return type == KVP_F16 || type == KVP_Q8_0 || type == KVP_Q4_0;
}

const char * kvp_type_name(int type) {
    switch (type) {
        case KVP_F16:  return "f16";
        case KVP_Q8_0: return "q8_0";
        case KVP_Q4_0: return "q4_0";
        default:       return nullptr;
    }
}

size_t kvp_row_bytes(int type, uint32_t n) {
    switch (type) {
        case KVP_F16:  return size_t(n) * 2;
        case KVP_Q8_0: return n % 32 == 0 ? size_t(n) / 32 * sizeof(block_q8_0) : 0;
        case KVP_Q4_0: return n % 32 == 0 ? size_t(n) / 32 * sizeof(block_q4_0) : 0;
        default:       return 0;
    }
}

void kvp_quantize_row(int type, const float * src, void * dst, uint32_t n) {
    switch (type) {
        case KVP_F16:  f16_from_floats(src, static_cast<uint16_t *>(dst), n); break;
        case KVP_Q8_0: q8_0_from_floats(src, static_cast<block_q8_0 *>(dst), n / 32); break;
        case KVP_Q4_0: q4_0_from_floats(src, static_cast<block_q4_0 *>(dst), n / 32); break;
        default: break;
    }
}

void kvp_dequantize_row(int type, const void * src, float * dst, uint32_t n) {
    switch (type) {
        case KVP_F16:  f16_to_floats(static_cast<const uint16_t *>(src), dst, n); break;
        case KVP_Q8_0: q8_0_to_floats(static_cast<const block_q8_0 *>(src), dst, n / 32); break;
        case KVP_Q4_0: q4_0_to_floats(static_cast<const block_q4_0 *>(src), dst, n / 32); break;
        default: break;
    }
}
