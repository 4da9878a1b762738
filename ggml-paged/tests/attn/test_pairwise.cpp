#include <gtest/gtest.h>

#include <set>

#include "pairwise.h"

namespace {

const std::vector<int> VALUES = {9, 4, 8, 7, 3, 2};

bool not_two_with_three(const design_row & row) {
    return !(row[0] == 2 && row[1] == 3);
}

} // namespace

TEST(pairwise, every_allowed_pair_occurs) {
    const auto rows = all_pairs(VALUES, not_two_with_three, 5);
    EXPECT_LT(rows.size(), 120u);  // all combinations are 12096
    for (size_t p = 0; p < VALUES.size(); p++) {
        for (size_t q = p + 1; q < VALUES.size(); q++) {
            std::set<std::pair<int, int>> seen;
            for (const design_row & row : rows) {
                seen.insert({row[p], row[q]});
            }
            const size_t forbidden = p == 0 && q == 1;
            EXPECT_EQ(seen.size(), (size_t) VALUES[p] * VALUES[q] - forbidden) << p << " " << q;
        }
    }
    EXPECT_EQ(missing_pairs(VALUES, not_two_with_three, rows), 0u);
}

TEST(pairwise, a_lost_row_is_missed) {
    auto rows = all_pairs(VALUES, not_two_with_three, 5);
    rows.erase(rows.begin());
    EXPECT_GT(missing_pairs(VALUES, not_two_with_three, rows), 0u);
}

TEST(pairwise, rows_keep_to_the_filter) {
    for (const design_row & row : all_pairs(VALUES, not_two_with_three, 8)) {
        EXPECT_TRUE(not_two_with_three(row));
    }
}
