package checked

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

func TestCopiesAreBounded(t *testing.T) {
	c := NewCopies(time.Now)
	for i := range MaxCopies + 10 {
		info := tier.Info{Name: pagefile.Name{Key: pagefile.Key{byte(i), byte(i >> 8), 1}}}
		c.Good(info, 0)
		require.True(t, c.Knows(info))
	}
	require.LessOrEqual(t, len(c.files), MaxCopies)
}
