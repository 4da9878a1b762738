// The op on the CPU after random histories.
#include "history.h"

TEST(history, no_stale_row_is_read) {
    uint32_t     seed = 100;
    std::mt19937 threads(1);
    for (int type : {KVP_F16, KVP_Q8_0}) {
        for (uint32_t frames : {1u, 2u, 5u, history::PAGES * history::LAYERS}) {
            SCOPED_TRACE("seed " + std::to_string(seed) + " frames " + std::to_string(frames));
            history h(seed, history::layer_of(type, 32), frames, [&](kvp_op * op, const kvp_io & io) {
                return forward(op, io, 1 + threads() % 3);
            });
            seed++;
            for (uint32_t i = 0; i < 150; i++) {
                SCOPED_TRACE("step " + std::to_string(i));
                h.step();
                if (::testing::Test::HasFatalFailure()) {
                    return;
                }
            }
            EXPECT_EQ(kvp_pager_error(h.pager.p, nullptr), 0);
            EXPECT_GT(h.worst, 0.0);
        }
    }
}

// The model's other slots, its past and what was chosen before do not show in a choice.
TEST(history, no_choice_follows_from_the_past) {
    uint32_t     seed = 200, narrowed = 0;
    std::mt19937 threads(2);
    for (int type : {KVP_F16, KVP_Q8_0}) {
        for (uint32_t frames : {1u, 2u, 5u, history::PAGES * history::LAYERS}) {
            SCOPED_TRACE("seed " + std::to_string(seed) + " frames " + std::to_string(frames));
            history h(seed, history::layer_of(type, 32), frames, [&](kvp_op * op, const kvp_io & io) {
                return forward(op, io, 1 + threads() % 3);
            });
            h.select_cells = 3 * history::PAGE;
            seed++;
            for (uint32_t i = 0; i < 100; i++) {
                SCOPED_TRACE("step " + std::to_string(i));
                h.step();
                if (::testing::Test::HasFailure()) {
                    return;
                }
            }
            narrowed += h.narrowed;
        }
    }
    EXPECT_GT(narrowed, 50u);
}
