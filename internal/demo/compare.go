package main

import (
	"reflect"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
)

// verdict is the relation of an answer to the answer in the same slot.
type verdict string

const (
	same     verdict = "yes"
	reworded verdict = "until a tie" // rounding decided between two equally good tokens
	differs  verdict = "NO"
)

// tieMargin is the distance of two log probabilities within which rounding may decide.
// Computing a prompt in other batches moves a log probability by up to 0.002 in f16, and by
// 0.03 with a q8_0 cache (measured with the test model).
const tieMargin = 0.05

// compareExact compares an answer that was computed from the same rows in the same batches.
func compareExact(want, got lab.Answer) verdict {
	if len(want.Logprobs) > 0 && want.Text == got.Text && want.Thinking == got.Thinking && reflect.DeepEqual(want.Logprobs, got.Logprobs) {
		return same
	}
	return differs
}

// compareText compares an answer that was computed in other batches.
func compareText(want, got lab.Answer) verdict {
	if want.Text == got.Text && want.Thinking == got.Thinking {
		return same
	}
	for i := range min(len(want.Logprobs), len(got.Logprobs)) {
		if want.Logprobs[i].Token == got.Logprobs[i].Token {
			continue
		}
		if tied(want.Logprobs[i]) && tied(got.Logprobs[i]) {
			return reworded
		}
		break
	}
	return differs
}

// tied reports whether the two best tokens were about as likely.
func tied(l api.Logprob) bool {
	return len(l.TopLogprobs) >= 2 && l.TopLogprobs[0].Logprob-l.TopLogprobs[1].Logprob < tieMargin
}
