package doctor_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/internal/engines"
)

// TestRealEngine: a Valkey is asked with this user's settings, and its end is told.
func TestRealEngine(t *testing.T) {
	const right, wrong = "OpenSesame1", "OpenSezame2"
	server, socket := engines.Valkey(t, "--requirepass", right)
	root := t.TempDir()
	said := func(password string) doctor.Report {
		return here(t, doctor.Options{Root: root, Remote: "unix://:" + password + "@" + socket})
	}
	r := said(right)
	require.NotContains(t, ids(r), "engine-off")
	require.Contains(t, strings.Join(r.Looked, "\n"), "remote tier unix://"+socket+", answers in ")

	refused := finding(t, said(wrong), "engine-off")
	require.Contains(t, refused.Evidence[0].Value, "it refuses the user or the password of the address: WRONGPASS")
	require.NotContains(t, refused.Evidence[0].Value, wrong)

	server.Kill()
	require.Contains(t, finding(t, said(right), "engine-off").Evidence[0].Value, "no connection, look at host and port and whether it runs")
	require.Empty(t, left(t, root))
}
