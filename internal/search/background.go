package search

import (
	"math"
	"slices"
)

// Background are texts that hardly any words are about. Their scores show what unrelated text gets from a model
// for the words that are searched.
var Background = []string{
	"The committee met on Tuesday and approved the minutes of the last meeting without changes.",
	"Add two eggs and a cup of sugar, then stir until the dough is smooth and bake it for forty minutes.",
	"func main() { for i := 0; i < 10; i++ { fmt.Println(i) } }",
	"The river flooded the valley in spring, and the villagers moved their animals to higher ground.",
	"You are a helpful assistant. Answer in short sentences and ask when something is unclear.",
	"The striker scored twice in the second half, and the home team won the match by three goals.",
	"Patients with a fever should rest, drink enough water and see a doctor after three days.",
	"The company reported higher profits for the quarter, and its shares rose by four percent.",
	"The telescope recorded light from a galaxy whose stars formed ten billion years ago.",
	"SELECT name, count(*) FROM orders WHERE created > now() - interval '1 day' GROUP BY name;",
	"She closed the door, sat down by the window and read the letter again.",
	"The court decided that the contract was void, because one party had not signed it.",
	"Tighten the four bolts crosswise, connect the cable and switch the pump on.",
	"The train to the coast leaves at half past eight, and the journey takes about two hours.",
	"Let x be a real number; then the square of x is never negative.",
	"The guitarist played an old song, and everybody in the room began to sing.",
}

const (
	// related is the number of background texts that the words may be about after all: those that score highest.
	related = 2

	// deviations is how far above the mean of the others a hit scores, in standard deviations. With
	// all-minilm-l6-v2, 11 of 13 searches found their conversation of eight, and 2 of 157 other scores were hits.
	deviations = 5

	// floorMin is the least floor. Even the scores of unrelated texts vary more than this.
	floorMin = 0.05
)

// Floor returns the least score of a hit, by the scores of the background.
func Floor(background []float64) float64 {
	scores := slices.Sorted(slices.Values(background))
	scores = scores[:len(scores)-related]
	var mean, square float64
	for _, s := range scores {
		mean += s / float64(len(scores))
	}
	for _, s := range scores {
		square += (s - mean) * (s - mean) / float64(len(scores))
	}
	return min(max(mean+deviations*math.Sqrt(square), floorMin), 1)
}
