package valkey

import (
	"bytes"
	"context"

	"github.com/valkey-io/valkey-go"
)

// swap replaces a ledger of ARGV[1] by ARGV[2], and returns a ledger that is another.
const swap = whenFull + `
local content = redis.call('GET', KEYS[1]) or ''
if content ~= ARGV[1] then return {content} end
redis.call('SET', KEYS[1], ARGV[2])
return {}`

// Account repeats change as long as others change the ledger first: one of them succeeds each time.
func (t *Tier) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	const what = "change the ledger"
	key := t.prefix + "ledger"
	answers, err := t.do(ctx, "read the ledger", t.client.B().Get().Key(key).Build())
	if err != nil {
		return nil, err
	}
	content, err := answers[0].AsBytes()
	if err != nil && !valkey.IsValkeyNil(err) {
		return nil, t.failed(ctx, what, err)
	}
	for change != nil {
		next, err := change(bytes.Clone(content), t.id)
		if err != nil {
			return nil, err
		}
		answers, err := t.do(ctx, what, t.client.B().Eval().Script(swap).Numkeys(1).Key(key).
			Arg(valkey.BinaryString(content), valkey.BinaryString(next)).Build())
		if err != nil {
			return nil, err
		}
		other, err := answers[0].AsStrSlice()
		if err != nil {
			return nil, t.failed(ctx, what, err)
		}
		if len(other) == 0 {
			return next, nil
		}
		content = []byte(other[0])
	}
	return content, nil
}
