//go:build !linux && !darwin

package collect

import "github.com/kvtier/kvtier/telemetry"

func takesNoFiles(string) telemetry.Obstacle { return "" }
