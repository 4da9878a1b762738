package nfstest

import (
	"testing"
	"time"

	"github.com/kvtier/kvtier/internal/nfstest/wire"
)

// behind is the time by which the server's clock is behind in most cases. Machines set their
// clocks to whole seconds, and the suite wants no time of the server that is yet to come.
const behind = -3 * time.Second

// TestContract runs the conformance suite of tiers on every kind of mount.
func TestContract(t *testing.T) {
	c := startCluster(t, clocks{server: behind})
	for _, kind := range []string{"vers=4.2", "vers=4.0", "vers=3", "vers=3,nolock", "vers=3,local_lock=flock"} {
		t.Run(kind, func(t *testing.T) {
			c.of(t).mountWith(c.a, kind)
			defer c.of(t).run(c.a, "/init", "unmount", mounted)
			t.Log(c.of(t).sh(c.a, "grep "+mounted+" /proc/mounts"))
			out, err := c.of(t).try(c.a, wire.Request{
				Args: []string{"/inside.test", "-test.run=TestContract", "-test.v"}, Env: []string{"KVTIER_NFS_DIR=" + mounted},
			})
			if err != nil {
				t.Error(err)
			}
			t.Log(out)
		})
	}
}
