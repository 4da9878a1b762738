package pagefile

import "context"

type gentlyKey struct{}

// Gently returns a context for reads that use one processor each: pieces are checked
// and decoded by who reads them, because the other processors compute what somebody
// else waits for.
func Gently(ctx context.Context) context.Context {
	return context.WithValue(ctx, gentlyKey{}, true)
}

func gentle(ctx context.Context) bool {
	is, _ := ctx.Value(gentlyKey{}).(bool)
	return is
}
