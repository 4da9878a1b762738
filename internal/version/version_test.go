package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/semver"
)

func TestVersionOfABuild(t *testing.T) {
	const hash = "0c0810d6d1a2ffffffffffffffffffffffffffff"
	stamped := func(tag, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: tag}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: hash}, {Key: "vcs.modified", Value: modified},
		}}
	}
	for want, info := range map[string]*debug.BuildInfo{
		"0.1.0-devel":                {Main: debug.Module{Version: "(devel)"}},
		"0.1.0-devel-g0c0810d":       stamped("v0.0.0-20251122051900-0c0810d6d1a2", "false"),
		"0.1.0-devel-g0c0810d-dirty": stamped("v0.0.0-20251122051900-0c0810d6d1a2+dirty", "true"),
		"0.3.0":                      stamped("v0.3.0", "false"),
		"0.3.1-rc.1":                 {Main: debug.Module{Version: "v0.3.1-rc.1"}},
		"0.1.0-devel-gabcdef0":       {Main: debug.Module{Version: "v0.2.1-0.20251122051900-abcdef012345"}},
	} {
		require.Equal(t, want, Of(info))
		require.True(t, semver.IsValid("v"+want))
	}
	require.Equal(t, "0.1.0-devel-g0c0810d-dirty", Of(stamped("v0.3.0+dirty", "true")))
	require.NotEmpty(t, String())
}
