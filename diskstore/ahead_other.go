//go:build !linux

package diskstore

import "github.com/kvtier/kvtier/diskstore/tier"

// inPageCache returns false: this system cannot tell.
func inPageCache(tier.Blob) bool { return false }
