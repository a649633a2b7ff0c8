"""depthkit: is the depth of my transformer doing any work, and what makes it work?"""
