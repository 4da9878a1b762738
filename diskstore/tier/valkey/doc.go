// Package valkey keeps a tier in Valkey or Redis.
package valkey

import _ "github.com/valkey-io/valkey-go"
