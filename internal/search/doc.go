/*
Package search finds stored conversations by meaning, for kvtier search.

An embedding model turns each 64 tokens of a page's text into a vector. A page's score is that of its best
vector: a few sentences on one matter are nearer to words about it than a whole page is. Vectors are files
beside the pages of the local tier; diskstore keeps and removes them. Nothing else computes or reads them.

	search.go    a search: vectors brought up to date, pages ranked
	index.go     texts of pages, and their vectors
	pages.go     the pages of the local tier, and the conversations that they make
	background.go the least score that says something
	vectors.go   the file of a page's vectors
	ollama.go    the embedding model

The score that unrelated text gets depends on the model and on the words: 0.65 is unrelated with one model, and
0.3 is a hit with another. So each search also embeds sixteen unrelated texts, and a page is a hit when it
scores far above these. See [Floor].
*/
package search
