//go:build !linux

package proc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOtherSystems: there is no /proc.
func TestOtherSystems(t *testing.T) {
	_, err := Read(1)
	require.Error(t, err)
	_, err = Boot()
	require.Error(t, err)
}
