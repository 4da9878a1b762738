package slotfile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhereAFileIs: the size decides, and the room that is left in memory and on the disk.
func TestWhereAFileIs(t *testing.T) {
	const mb, neither = 1 << 20, kinds
	none := [kinds]int64{}
	for name, c := range map[string]struct {
		memory     bool
		free, disk int64
		claimed    [kinds]int64
		size       int64
		want       kind
	}{
		"small":                            {true, 8000 * mb, 8000 * mb, none, 100 * mb, inMemory},
		"an empty file":                    {true, 0, 0, none, 0, inMemory},
		"as large as may be":               {true, 2048 * mb, 8000 * mb, none, 512 * mb, inMemory},
		"a byte more":                      {true, 9000 * mb, 8000 * mb, none, 512*mb + 1, onDisk},
		"a quarter of the memory":          {true, 400 * mb, 8000 * mb, none, 100 * mb, inMemory},
		"more than that":                   {true, 399 * mb, 8000 * mb, none, 100 * mb, onDisk},
		"beside others in memory":          {true, 8000 * mb, 8000 * mb, [kinds]int64{inMemory: 500 * mb}, 13 * mb, onDisk},
		"half of the disk":                 {true, 0, 2000 * mb, none, 1000 * mb, onDisk},
		"beside others on the disk":        {true, 0, 2000 * mb, [kinds]int64{onDisk: 1}, 1000 * mb, neither},
		"a quarter, with others":           {true, 400 * mb, 8000 * mb, [kinds]int64{inMemory: 50 * mb}, 51 * mb, onDisk},
		"a full disk, and others":          {true, 8000 * mb, 100 * mb, [kinds]int64{inMemory: 4000 * mb}, 60 * mb, neither},
		"a full disk":                      {true, 8000 * mb, 100 * mb, none, 4000 * mb, inMemory},
		"a full disk, and little memory":   {true, 8000 * mb, 100 * mb, none, 4001 * mb, neither},
		"a system without files in memory": {false, unknown, 2000 * mb, none, mb, onDisk},
		"such a system, and a full disk":   {false, 8000 * mb, 0, none, mb, neither},
		"no figures":                       {true, unknown, unknown, none, 512 * mb, inMemory},
		"no figures, and large":            {true, unknown, unknown, none, 512*mb + 1, neither},
	} {
		t.Run(name, func(t *testing.T) {
			r := room{c.memory, c.free, c.disk, c.claimed}
			got, err := r.choose(c.size)
			if c.want == neither {
				require.ErrorIs(t, err, ErrNoRoom)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}
