package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvtier/kvtier/internal/cli/clitest"
)

// TestScripts runs the command as users do. Scripts have the additional command exits.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  filepath.Join("testdata", "script"),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits},
	})
}
