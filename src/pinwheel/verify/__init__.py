"""Rules over what inspect read: does a wheel fit what it claims?"""
