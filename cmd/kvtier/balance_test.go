package main

import (
	"os"
	"os/user"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/segment"
)

func TestBalanced(t *testing.T) {
	for name, c := range map[string]struct {
		segment  string
		state    segment.State
		patterns []string
		want     bool
	}{
		"host memory":           {"kvcached_7_cpu", segment.Live, nil, true},
		"deleted":               {"kvcached_7_cpu", segment.Deleted, nil, true},
		"of vLLM":               {"kvcached_vLLM_7", segment.Foreign, nil, false},
		"a GPU":                 {"kvcached_7_cuda0", segment.Live, nil, false},
		"a GPU that is named":   {"kvcached_7_cuda12", segment.Live, []string{"other", "kvcached_*_cuda12"}, true},
		"another GPU":           {"kvcached_7_cuda1", segment.Live, []string{"kvcached_*_cuda12"}, false},
		"of vLLM, and is named": {"kvcached_vLLM_7", segment.Foreign, []string{"kvcached_vLLM_*"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, balanced(segment.Segment{Name: c.segment, State: c.state}, c.patterns))
		})
	}
}

func TestBalancedUsers(t *testing.T) {
	if os.Getuid() < 0 {
		t.Skip("users of this system have no numbers")
	}
	me, err := user.Current()
	require.NoError(t, err)
	uids, err := balancedUsers([]string{me.Username, strconv.Itoa(os.Getuid())})
	require.NoError(t, err)
	require.Equal(t, []uint32{uint32(os.Getuid()), uint32(os.Getuid())}, uids)
	_, err = balancedUsers([]string{"no such user"})
	require.ErrorContains(t, err, "there is no user")
	uids, err = balancedUsers([]string{"12345"})
	if os.Getuid() == 0 {
		require.NoError(t, err)
		require.Equal(t, []uint32{12345}, uids)
	} else {
		require.ErrorContains(t, err, "only root")
	}
}
